"""`PathString`: a path that is a string, as Ray Train's are, and has what a Path has."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import PosixPath

    import pyarrow.fs

    # For a type checker it is both.
    class _Base(str, PosixPath):  # type: ignore[misc]
        pass
else:
    _Base = str


def expand_home(path: str | PathLike[str]) -> Path:
    """Return a path whose leading ``~`` is replaced, as a shell does. Not collective.

    The ``~NAME`` of a user that there is not stays as it is.
    """
    return Path(os.path.expanduser(path))


class PathString(_Base):
    """A path that is a string: ``path + "/x"``, ``path.split("/")``, ``json.dumps(path)``.

    Attributes that a string lacks are those of `pathlib.Path`: ``path / "x"``, ``path.name``,
    ``path.exists()``. json accepts only strings, so the class extends str, not Path. It equals a
    string and a Path, and has the hash of the string.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether the other is the same path, a string or a Path."""
        return str.__eq__(self, str(other) if isinstance(other, PurePath) else other)

    def __ne__(self, other: object) -> bool:
        """Return whether the other is another path."""
        return not self == other

    def __hash__(self) -> int:
        """Return the hash of the string."""
        return str.__hash__(self)

    def __fspath__(self) -> str:
        """Return the path as a plain string."""
        return str(self)

    def __truediv__(self, other: Any) -> Any:
        """Return the Path of an entry of this directory."""
        return Path(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        """Return this path below another one, as a Path."""
        return other / Path(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Path that a string lacks."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(Path(self), name)


def local_filesystem() -> pyarrow.fs.LocalFileSystem:
    """Return Arrow's filesystem of such paths. Not collective.

    Raises
    ------
    ConfigError
        If pyarrow is not installed.
    """
    try:
        from pyarrow.fs import LocalFileSystem
    except ImportError as error:
        raise ConfigError(
            "filesystem needs pyarrow: pip install 'hpctrain[data]'. The path is one of this "
            "machine: open() and pathlib need nothing else."
        ) from error
    return LocalFileSystem()
