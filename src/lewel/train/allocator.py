"""How a processor's memory is handed out: what a step frees stays for the next one."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of these settings
_LARGEST_BLOCK, _MOST_KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Tell glibc not to give large blocks back to the system; False where there is no glibc.

    Otherwise the activations of every step are fetched anew, page by page. What the user has set
    by the environment stays.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on Windows
        return False
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _MOST_KEPT))
    taken = [libc.mallopt(*setting) for setting in settings]
    return all(taken)
