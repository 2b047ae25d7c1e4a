"""`RunHandle` and `wait`: runs that go on without this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.checks import check_count
from hpctrain.errors import ConfigError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status

if TYPE_CHECKING:
    from hpctrain.launch.ending import EndWatch
    from hpctrain.launch.live_watch import LiveWatch
    from hpctrain.result import Result


class RunHandle:
    """A run that goes on without this process, as ``trainer.submit()`` returns it.

    It is nothing but the run directory: another process can make one from the path, at any time.

    Parameters
    ----------
    path
        The run directory.

    Raises
    ------
    ConfigError
        If there is no run.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path).absolute()
        """The run directory."""
        self._paths = RunPaths(self.path)
        self._live_watch: LiveWatch | None = None
        if not self._paths.plan.exists():
            raise ConfigError(
                f"{self.path} is not a run of hpctrain. 'hpctrain list STORAGE_PATH' shows the "
                f"runs of a directory."
            )

    def __repr__(self) -> str:
        """Return name, state and job."""
        job = f", job_id={self.job_id!r}" if self.job_id else ""
        return f"RunHandle(name={self.name!r}, state={self.state!r}{job})"

    def _repr_html_(self) -> str:
        """Return the display in a notebook: the run as it is now."""
        from hpctrain.rundir.live_html import render_live

        return render_live(self._watch().look())

    def show(self, *, interval_s: float = 2.0, timeout_s: float = math.inf) -> None:
        """Show the run in a notebook, and draw it again until it is over.

        Not collective. It only reads the run directory, and may be interrupted at any time: the run
        goes on.

        Parameters
        ----------
        interval_s
            Seconds between two looks; no less than 1, since many may look at the same filesystem.
        timeout_s
            Return after so many seconds in any case.

        Raises
        ------
        ConfigError
            If this is no notebook.
        """
        from hpctrain.launch.notebook import show

        show(self._watch(), interval_s=interval_s, timeout_s=timeout_s)

    def _watch(self) -> LiveWatch:
        from hpctrain.launch.live_watch import JobBoard, LiveWatch

        # Kept, as it knows when it has asked Slurm last.
        self._live_watch = self._live_watch or LiveWatch(self._paths, JobBoard())
        return self._live_watch

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same run."""
        return isinstance(other, RunHandle) and other.path == self.path

    def __hash__(self) -> int:
        """Return the hash of the path."""
        return hash(self.path)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def state(self) -> str:
        """The state in ``status.json``: ``submitted``, ``running``, ``finished``, ..."""
        status = read_status(self._paths)
        return "submitting" if status is None else status.state.value

    @property
    def job_id(self) -> str | None:
        """Slurm's id of the job that runs it now, or None."""
        status = read_status(self._paths)
        return None if status is None else status.job_id

    def wait(self, *, timeout_s: float = math.inf) -> bool:
        """Wait until the run is over; return whether it is.

        Not collective. A run that failed, or that no process runs any more, is over as well.
        """
        done, _ = wait([self], timeout_s=timeout_s)
        return bool(done)

    def result(self, *, timeout_s: float = math.inf) -> Result:
        """Wait until the run is over, and return what came out of it, as ``fit()`` does.

        Not collective.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout_s` seconds; it goes on.
        TrainingFailedError
            If it failed or was stopped.
        LaunchError
            If Slurm refused its job, or the ranks could not be started.
        """
        from hpctrain.result import Result

        (watch,) = _watch([self])
        if not _await([watch], num_returns=1, timeout_s=timeout_s):
            raise TimeoutError(
                f"run {self.name!r} is not over after {timeout_s:g} s ({self.state}); it goes on. "
                f"Look at it with: hpctrain status {self.path}"
            )
        if watch.error is not None:
            raise watch.error
        result = Result.from_path(self.path)
        if result.error is not None:
            raise result.error
        return result

    def cancel(self, *, now: bool = False) -> None:
        """Stop the run at its next report, or take its job back if that has not begun.

        Not collective. Returns at once; ``fit()`` or ``submit()`` of the same name resumes the run.
        A run that is over is left as it is.

        Parameters
        ----------
        now
            End it at once, without a last checkpoint; waits until it has ended.

        Raises
        ------
        LaunchError
            If Slurm does not answer.
        """
        from hpctrain.launch.cancel import cancel_run

        cancel_run(self._paths, now=now)


def wait(
    handles: Sequence[RunHandle],
    *,
    num_returns: int | None = None,
    timeout_s: float = math.inf,
) -> tuple[list[RunHandle], list[RunHandle]]:
    """Wait for several runs; return those that are over, and the others.

    Not collective. As ``concurrent.futures.wait`` and ``ray.wait``, but for the default of
    `num_returns`: all of them. A run that failed raises nothing here; its ``result()`` does.

    Parameters
    ----------
    handles
        The runs. Both lists that are returned keep their order.
    num_returns
        Return when so many are over. None: all.
    timeout_s
        Return after so many seconds in any case.

    Raises
    ------
    ConfigError
        If there are fewer handles than `num_returns`, or one is given twice.
    """
    check_count("num_returns", num_returns, at_least=1, optional=True)
    if len(set(handles)) != len(handles):
        raise ConfigError(f"wait() got a run twice: {[handle.name for handle in handles]}.")
    if num_returns is not None and num_returns > len(handles):
        raise ConfigError(
            f"wait(num_returns={num_returns}) of {len(handles)} runs never returns. Ask for "
            f"{len(handles)} at most."
        )
    watches = _watch(handles)
    wanted = len(handles) if num_returns is None else num_returns
    ended = {watch.paths.root for watch in _await(watches, num_returns=wanted, timeout_s=timeout_s)}
    done = [handle for handle in handles if handle.path in ended]
    return done, [handle for handle in handles if handle.path not in ended]


def _watch(handles: Sequence[RunHandle]) -> list[EndWatch]:
    from hpctrain.launch.ending import EndWatch

    return [EndWatch(RunPaths(handle.path)) for handle in handles]


def _await(watches: Sequence[EndWatch], *, num_returns: int, timeout_s: float) -> list[EndWatch]:
    from hpctrain.launch.ending import await_ends

    if environ.detach_requested():
        from hpctrain.launch.detach import leave

        ended = await_ends(watches, num_returns=num_returns, timeout_s=0.0)
        if len(ended) >= num_returns or timeout_s == 0:
            return ended
        leave()
    return await_ends(watches, num_returns=num_returns, timeout_s=timeout_s)
