"""What of a file is in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Return whether a part of a file is in the page cache, to judge by its ends. Not collective.

    Parameters
    ----------
    descriptor
        Of the file.
    position
        Where the part begins, in bytes.
    size
        Of the part, in bytes; what is beyond the end of the file does not count.
    """
    status = os.fstat(descriptor)
    size = min(size, status.st_size - position)
    if size <= 0:
        return True
    # To others than a file's owner, Linux says of all pages that they are there.
    if status.st_uid == os.geteuid():
        return _are_resident(descriptor, position, size)
    return _can_be_read_at_once(descriptor, position, size)


def _are_resident(descriptor: int, position: int, size: int) -> bool:
    within = position % mmap.PAGESIZE
    position, size = position - within, size + within
    try:
        # Private, so that the address can be had although nothing is to be written.
        window = mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, offset=position)
    except (OSError, ValueError):
        # No memory for it, or a file that cannot be mapped.
        return True
    first = ctypes.c_char.from_buffer(window)
    address, page = ctypes.addressof(first), ctypes.c_ubyte()
    # All of them would take as long as their copy.
    found = [
        _mincore()(address + offset, mmap.PAGESIZE, ctypes.byref(page)) == 0 and page.value & 1
        for offset in (0, (size - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
    ]
    del first
    window.close()
    return all(found)


def _can_be_read_at_once(descriptor: int, position: int, size: int) -> bool:
    # Brings a page of each end there, so that whoever asks again finds it.
    byte = bytearray(1)
    try:
        for at in (position, position + size - 1):
            os.preadv(descriptor, [byte], at, os.RWF_NOWAIT)
    except OSError:
        # Not at once; or not at all, which whoever reads it finds.
        return False
    return True


@cache
def _mincore() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).mincore
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
