"""glibc's allocator: memory freed by one step is reused by the next."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's parameter numbers
_LARGEST_BLOCK, _MOST_KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Keep large freed blocks in the process; returns False where there is no glibc.

    Otherwise glibc returns them to the system, and every step pays page faults for its
    activations. Settings by the user's MALLOC_* variables are left alone.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return False
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _MOST_KEPT))
    accepted = [libc.mallopt(*setting) for setting in settings]
    return all(accepted)
