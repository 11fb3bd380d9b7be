"""How a processor's memory is handed out: what a step frees stays for the next one."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of these settings
_LARGEST = 1 << 30


def keep_freed_memory() -> bool:
    """Tell glibc not to give large blocks back to the system; False where there is no glibc.

    Otherwise every activation of every step is fetched anew, page by page: 39,000 page faults a
    step of LEWEL_B at ResNet-18, 64 px and batch 16, 6 % of its processor time. What the user has
    set by the environment stays.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on Windows
        return False
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    kept = libc.mallopt(_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    return bool(kept)
