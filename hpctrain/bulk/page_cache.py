"""`CachedPages`: what of a file is in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache


class CachedPages:
    """Shows what of a file is in the page cache.

    Parameters
    ----------
    descriptor
        Of the file; stays open while this object is used.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._size = status.st_size
        self._is_own = status.st_uid == os.geteuid()
        self._address: int | None = None
        # To others than a file's owner, Linux says of all pages that they are there.
        if self._is_own and self._size:
            # All of it, once: no page is touched, so it takes no memory. Python's own mmap does not
            # give the address of a read-only mapping.
            address = _libc().mmap(None, self._size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
            # Or there is no room for it, or it is a file that cannot be mapped.
            self._address = address if address != _FAILED else None

    def has(self, position: int, size: int) -> bool:
        """Return whether a part of the file is there, to judge by its ends. Not collective.

        Parameters
        ----------
        position
            Where the part begins, in bytes.
        size
            Of the part, in bytes; what is beyond the end of the file does not count.
        """
        size = min(size, self._size - position)
        if size <= 0:
            return True
        if self._is_own:
            return self._are_resident(position, position + size - 1)
        return _can_be_read_at_once(self._descriptor, position, position + size - 1)

    def close(self) -> None:
        """Forget the file. Not collective."""
        if self._address is not None:
            _libc().munmap(self._address, self._size)
            self._address = None

    def _are_resident(self, *positions: int) -> bool:
        if self._address is None:
            return True
        page = ctypes.c_ubyte()
        for position in positions:
            start = self._address + position // mmap.PAGESIZE * mmap.PAGESIZE
            if _libc().mincore(start, mmap.PAGESIZE, ctypes.byref(page)) or not page.value & 1:
                return False
        return True


def _can_be_read_at_once(descriptor: int, *positions: int) -> bool:
    # Brings a page of each end into the cache, so that a second call finds it.
    byte = bytearray(1)
    try:
        for position in positions:
            os.preadv(descriptor, [byte], position, os.RWF_NOWAIT)
    except (OSError, AttributeError):
        # Not at once; or not at all, which is an error of the later read. Conda's Python lacks it.
        return False
    return True


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return libc
