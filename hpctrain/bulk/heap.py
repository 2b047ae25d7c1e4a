"""`return_large_blocks`: no large block of memory stays with a process that has freed it."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# malloc.h
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 2**20


def return_large_blocks() -> None:
    """Give each block of 1 MiB or more back to the kernel once it is freed. Not collective.

    For the whole process, from now on. glibc takes them from its heap after the first one, where
    holes stay between them (mallopt(3), M_MMAP_THRESHOLD): to read 8 MiB at a time took up to
    100 MiB. Where the C library has no such setting, nothing changes.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
