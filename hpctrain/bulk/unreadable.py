"""`UnreadableError`: a file could not be read just now, which says nothing of what is in it."""

from __future__ import annotations

import errno

from hpctrain.errors import CheckpointError

# Of the filesystem, the network or this process, and not of the file. EIO and EISDIR are not among
# them: a disk gives the first for a bad sector, and it does so again.
_PASSING = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
    }
)


class UnreadableError(CheckpointError):
    """A file cannot be read just now. What is in it may be sound."""


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error says nothing of the file that was to be read. Not collective."""
    return isinstance(error, OSError) and error.errno in _PASSING
