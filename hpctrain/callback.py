"""`UserCallback`: a user's hooks into a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint
    from hpctrain.result import Result


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The run for which a callback is called."""

    name: str
    """Name of the run."""
    path: Path
    """The run directory."""
    attempt: int
    """Number of the running attempt, from 1."""
    world_size: int
    """Ranks of the running attempt."""
    report: int = 0
    """Number of the last report of all ranks, counted over all attempts."""
    sweep: str | None = None
    """Name of the sweep (`hpctrain.tune.Tuner`) of which the run is a trial; None if it is none."""


class UserCallback:
    """Hooks that run in the executor: once a run, not once a rank, and never inside a rank.

    On a login node the callback object is pickled for the job, so it must not hold open files or
    connections; open them at the first call. If a hook raises, the error is logged and the run
    continues, unless the class (or the object) sets ``fatal = True``.
    """

    fatal: ClassVar[bool] = False
    """Whether an exception in a hook ends the run."""

    def on_submit(self, parameters: Mapping[str, Any]) -> None:
        """Run before the start, in the process that calls ``fit()``, which raises its errors.

        Called again by each ``fit()``, before anything is written or submitted.

        Parameters
        ----------
        parameters
            Configuration of the training: `train_loop_config`, or the parameters of a library.
        """

    def after_report(
        self,
        run_context: RunContext,
        metrics: Sequence[Mapping[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Run after a report of all ranks: `metrics` has one mapping per rank, by world rank."""

    def after_exception(
        self, run_context: RunContext, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        """Run after an attempt failed: the exception of each failed rank, by world rank."""

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        """Run after the end of the run, in every state."""

    def describe_record(self) -> str:
        """Return what no other callback of the run may write too; empty for nothing."""
        return ""


HOOKS = ("on_submit", "after_report", "after_exception", "on_finish")


def begin_submission(callbacks: Sequence[UserCallback], parameters: Mapping[str, Any]) -> None:
    """Call `UserCallback.on_submit` of each callback. Not collective.

    Raises
    ------
    ConfigError
        If two of them write the same record.
    """
    writers: dict[str, str] = {}
    for callback in callbacks:
        callback.on_submit(parameters)
        name, record = type(callback).__name__, callback.describe_record()
        if record and record in writers:
            raise ConfigError(
                f"RunConfig(callbacks=...): {writers[record]} and {name} both write {record}. "
                f"Leave one out, or give it another record."
            )
        writers[record] = name
