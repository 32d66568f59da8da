"""The heap while training: what one step frees, the next one needs again."""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt
_KEPT = 512 << 20  # free memory at the end of the heap that is not given back
_LARGEST = 32 << 20  # blocks up to here come from the heap; the C library takes no more
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep up to 512 MB that it has freed; whether that could be done.

    Else glibc gives the tensors of a step back to the system, and the next step pays for fresh, zeroed pages: a third
    of the time of a small model's backward. Settings of the environment are respected, and other C libraries left
    alone.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _CHOSEN):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
