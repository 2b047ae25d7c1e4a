"""Bytes of a file, read into existing memory by any number of threads at once."""

from __future__ import annotations

import os

import numpy as np

from hpctrain.data.open_files import Identity, identity_of


class RawFile:
    """A file that is read at offsets. Its last reference closes it at the latest.

    Parameters
    ----------
    path
        An existing file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def identity(self) -> Identity | None:
        """Return the identity of the open file. Not collective."""
        return identity_of(self._fd)

    def close(self) -> None:
        """Close the file. Not collective."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the file."""
        if hasattr(self, "_fd"):
            self.close()

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill an array with the bytes at an offset. Not collective.

        Neither HDF5's lock nor Python's is held meanwhile.

        Parameters
        ----------
        out
            Contiguous.
        offset
            Bytes from the beginning of the file.

        Raises
        ------
        OSError
            If they cannot be read, or the file ends before.
        """
        left = out.reshape(-1).view(np.uint8)
        while left.size:
            # Linux reads at most 2 GiB per call, and less if a signal arrives.
            count = os.preadv(self._fd, [left.data], offset)
            if count == 0:
                size = os.fstat(self._fd).st_size
                raise OSError(f"{left.size} bytes at {offset} are missing: the file ends at {size}")
            left = left[count:]
            offset += count
