"""`HeldDirectory`: the directory that a run began in, whatever its path leads to later."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

from hpctrain.errors import DamagedFileError, RunStoppedError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_object

# A server, or an automounter, may deny for a moment what is there.
_DOUBT_S = 1.0


class HeldDirectory:
    """Holds the directory of a run open, and knows whether its path still leads there.

    Held open, a directory keeps its device and inode, also on filesystems that make up the numbers.

    Parameters
    ----------
    paths
        The run directory, which exists.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._descriptor = os.open(paths.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)
        self._plan_mark: tuple[int, int, int] | None = None
        self._run_id: str | None = None
        plan = _mark(paths.plan)
        if plan is not None:
            self._plan_mark, self._run_id = plan, read_run_id(paths)

    @property
    def is_here(self) -> bool:
        """Whether the path of the run leads to the directory and the files that it began with."""
        return self._explain() is None

    @property
    def paths(self) -> RunPaths:
        """Paths into the directory that the run began in, wherever it lies now."""
        if self.is_here:
            return self._paths
        # Through the descriptor (man 5 proc): where it was deleted, nothing can be made there.
        return RunPaths(Path(f"/proc/self/fd/{self._descriptor}"))

    def close(self) -> None:
        """Let go of it: its filesystem can be unmounted, and nothing is known of it any more."""
        self._finalizer()

    def check(self) -> None:
        """Return if the path still leads to the directory.

        Raises
        ------
        RunStoppedError
            If it does not: the directory was removed, moved or replaced.
        """
        if self._explain() is None:
            return
        time.sleep(_DOUBT_S)
        if (why := self._explain()) is not None:
            raise RunStoppedError(
                f"the directory of the run, {self._paths.root}, {why}. The run was stopped, and "
                f"nothing more is written there. {self._describe_resumption()}"
            )

    def _explain(self) -> str | None:
        """Return what became of the directory; None if it is as it was, or if that is not known."""
        if not self._finalizer.alive:
            return None
        root = self._paths.root
        try:
            present = os.stat(root)
        except (FileNotFoundError, NotADirectoryError):
            now = self._location()
            return "was removed" if now is None else f"was moved to {now}"
        except OSError:
            # Of the filesystem, which does not answer.
            return None
        if not os.path.samestat(present, os.fstat(self._descriptor)):
            now = self._location()
            own = "is gone" if now is None else f"is {now} now"
            return f"is another one than the run began in, which {own}"
        if self._plan_mark is None:
            return None
        try:
            mark = _mark(self._paths.plan)
            if mark == self._plan_mark:
                return None
            run_id = None if mark is None else read_run_id(self._paths)
        except OSError:
            return None
        if mark is None:
            return "has lost its files"
        # None: damaged, which does not mean that it is another run's.
        if run_id not in (None, self._run_id):
            return "has the files of another run now"
        self._plan_mark = mark
        return None

    def _location(self) -> Path | None:
        """Return where the directory lies now, as far as this machine knows it."""
        try:
            path = os.readlink(f"/proc/self/fd/{self._descriptor}")
            is_here = os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return None
        return Path(path) if is_here else None

    def _describe_resumption(self) -> str:
        now = self._location()
        if now is None:
            return "fit() begins it anew."
        return f"fit() with storage_path={str(now.parent)!r} and name={now.name!r} resumes it."


def read_run_id(paths: RunPaths) -> str | None:
    """Return what the run is known by; None where its plan is missing, damaged or an older one."""
    try:
        run_id = read_object(paths.plan).get("run_id")
    except (FileNotFoundError, NotADirectoryError, DamagedFileError):
        return None
    return run_id if isinstance(run_id, str) else None


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file, or None where there is none."""
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
