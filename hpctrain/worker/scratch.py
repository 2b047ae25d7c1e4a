"""`Scratch`: a rank's directory on its node's own disk, and the copy of its artifacts."""

from __future__ import annotations

import hashlib
import os
import stat
from errno import ELOOP, ENOENT
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.rundir.bulk import Bulk
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.removal import remove_tree


class Scratch:
    """A rank's directory on its node's own disk. What an earlier attempt left there is deleted.

    Parameters
    ----------
    root
        Node-local directory.
    run
        The run directory.
    rank
        World rank.

    Raises
    ------
    ConfigError
        If `root` cannot be written, or the directory in it is another user's.
    """

    def __init__(self, root: Path, *, run: Path, rank: int) -> None:
        # Not a random name: the next process after a kill has to find what is left.
        digest = hashlib.sha256(str(run).encode()).hexdigest()[:12]
        ours = root / f"hpctrain-{run.name}-{digest}"
        self.path = ours / f"rank-{rank:05d}"
        """The directory."""
        try:
            ours.mkdir(mode=0o700, exist_ok=True)
            # In /tmp anyone could have made it.
            if ours.is_symlink() or ours.stat().st_uid != os.getuid():
                raise ConfigError(
                    f"SyncConfig(scratch_dir=...): {ours} belongs to another user. Choose a "
                    f"directory of your own."
                )
            remove_tree(self.path)
            self.artifacts.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"SyncConfig(scratch_dir=...): {ours} cannot be made: {error.strerror}. It has to "
                f"be a directory that exists and can be written on every node."
            ) from error
        self._copied: dict[Path, tuple[int, int]] = {}

    @property
    def artifacts(self) -> Path:
        """Where this rank writes artifacts that are copied to the run."""
        return self.path / "artifacts"

    def checkpoint(self, report: int) -> Path:
        """Return where a report's checkpoint is saved. Not collective."""
        return self.path / f"checkpoint-{report:06d}"

    def holds(self, path: Path) -> bool:
        """Return whether a path is in here. Not collective."""
        return self.path in path.parents

    def copy_artifacts(self, target: Path, bulk: Bulk) -> None:
        """Copy the artifacts that are new or have changed. Not collective.

        What is no file, such as a socket, is left out.
        """

        def fail(error: OSError) -> None:
            # Raise if a folder cannot be listed; ignore one that was deleted meanwhile.
            if error.errno != ENOENT:
                raise error

        for folder, _, names in os.walk(self.artifacts, onerror=fail):
            for name in names:
                source = Path(folder, name)
                try:
                    found = source.stat()
                except OSError as error:
                    if error.errno in (ENOENT, ELOOP):
                        continue
                    raise
                mark = (found.st_size, found.st_mtime_ns)
                if not stat.S_ISREG(found.st_mode) or self._copied.get(source) == mark:
                    continue
                copy = target / source.relative_to(self.artifacts)
                make_directory(copy.parent, below=target.parent)
                # A name of its own length: that of the artifact may be as long as names can be.
                beside = copy.with_name(f".hpctrain-{self.path.name}")
                # What a kill left.
                beside.unlink(missing_ok=True)
                try:
                    bulk.copy(source, beside)
                except FileNotFoundError:
                    if os.path.lexists(source):
                        raise
                    beside.unlink(missing_ok=True)
                    continue
                os.replace(beside, copy)
                self._copied[source] = mark

    def remove(self) -> None:
        """Delete the directory. Not collective."""
        remove_tree(self.path)
