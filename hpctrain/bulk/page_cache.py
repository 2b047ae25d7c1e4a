"""What of a file is in the page cache, found out without reading it."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

from hpctrain.bulk.state_file import PAGE_BYTES


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Return whether a part of a file is in the page cache, to judge by its ends. Not collective.

    A look with ``RWF_NOWAIT`` would bring a page there, and the next look would find it. Linux
    tells nobody but a file's owner: to others, all of it seems to be there.

    Parameters
    ----------
    descriptor
        Of the file.
    position
        Where the part begins; a multiple of a page.
    size
        Of the part, in bytes; what is beyond the end of the file does not count.
    """
    size = min(size, os.fstat(descriptor).st_size - position)
    if size <= 0:
        return True
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
        _mincore()(address + offset, PAGE_BYTES, ctypes.byref(page)) == 0 and page.value & 1
        for offset in (0, (size - 1) // PAGE_BYTES * PAGE_BYTES)
    ]
    del first
    window.close()
    return all(found)


@cache
def _mincore() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).mincore
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
