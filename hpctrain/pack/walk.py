"""`Walk`: the members of an archive that are below a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.pack.header import ENVIRONMENT

# A link to one of these leads to what each node has.
_OF_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/etc", "/lib", "/lib64", "/sbin", "/proc", "/dev")))


@dataclass(frozen=True, kw_only=True)
class Member:
    """An entry of the archive."""

    name: str
    """Its path there."""
    source: Path | None = None
    """The file or directory that it is; None for a link or `content`."""
    target: str | None = None
    """Where a link leads to."""
    content: bytes | None = None
    """What it holds, if it is not a file as it is."""
    library_path: tuple[bytes, bytes] | None = None
    """Where a program or library looks for others, and what replaces that."""


class Walk:
    """Reads trees, and follows the links that lead out of what is packed.

    Parameters
    ----------
    packed
        Directories that are packed, and their names in the archive.
    """

    def __init__(self, packed: dict[Path, str]) -> None:
        self._packed = {**packed, **{place.resolve(): name for place, name in packed.items()}}
        self._open: list[tuple[int, int]] = []

    def tree(
        self,
        path: Path,
        name: str,
        *,
        without: Collection[Path] = (),
        has_compiled: bool = True,
    ) -> Iterator[Member]:
        """Yield a file, or a directory and what is below it.

        Parameters
        ----------
        path
            The file or directory.
        name
            Its path in the archive.
        without
            Files and directories that are left out.
        has_compiled
            Whether compiled modules belong to it. Of a directory that is being edited they come and
            go with its use.

        Raises
        ------
        ConfigError
            If something cannot be read, or a link leads back.
        """
        if path in without:
            return
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                target = self._leads_to(path, name)
                if target is not None:
                    yield Member(name=name, target=target)
                    return
                found = path.stat()
            if stat.S_ISREG(found.st_mode):
                yield Member(name=name, source=path)
            if not stat.S_ISDIR(found.st_mode):
                # A socket, FIFO or device is of a process, not of an environment.
                return
            identity = found.st_dev, found.st_ino
            if identity in self._open:
                raise ConfigError(
                    f"{path} leads back to a directory that contains it. Remove that link."
                )
            yield Member(name=name, source=path)
            entries = sorted(entry.name for entry in os.scandir(path))
        except OSError as error:
            raise unreadable(path, error) from error
        self._open.append(identity)
        for entry in entries:
            if has_compiled or entry != "__pycache__":
                yield from self.tree(
                    path / entry, f"{name}/{entry}", without=without, has_compiled=has_compiled
                )
        self._open.pop()

    def _leads_to(self, path: Path, name: str) -> str | None:
        """Return the target of a link in the archive; None if what it leads to belongs there."""
        target = os.readlink(path)
        whole = Path(os.path.normpath(path.parent.resolve() / target))
        for place, there in self._packed.items():
            if whole.is_relative_to(place) and self._is_packed(whole, place, there):
                inside = os.path.normpath(f"{there}/{whole.relative_to(place)}")
                return os.path.relpath(inside, os.path.dirname(name))
        is_of_system = any(whole.is_relative_to(place) for place in _OF_SYSTEM)
        return str(whole) if is_of_system or not path.exists() else None

    @staticmethod
    def _is_packed(whole: Path, place: Path, there: str) -> bool:
        if there == ENVIRONMENT:
            return True
        # Of the other interpreter only a part is packed.
        parts = whole.relative_to(place).parts
        return parts[:1] == ("bin",) and parts[-1].startswith("python")


def unreadable(path: Path, error: OSError) -> ConfigError:
    """Return the error for a file of the environment that cannot be read. Pure."""
    return ConfigError(
        f"{path} belongs to the environment and cannot be read: {error.strerror}. Make it "
        f"readable, or remove it."
    )
