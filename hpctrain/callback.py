"""`UserCallback`: what a user can hang onto a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint
    from hpctrain.result import Result


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Which run a callback is called for."""

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


class UserCallback:
    """Hooks that run in the executor: once a run, not once a rank, and never inside a rank.

    On a login node the callback object is pickled and travels with the job, so it may not hold open
    files or connections; open them at the first call. A hook that raises is logged and the run goes
    on, unless the class (or the object) says ``fatal = True``.
    """

    fatal: ClassVar[bool] = False
    """Whether an exception in a hook ends the run."""

    def on_submit(self, parameters: Mapping[str, Any]) -> None:
        """Precede the start, in the process that calls ``fit()``: what is raised here, it raises.

        Called again by each ``fit()``, before anything is written or submitted.

        Parameters
        ----------
        parameters
            What the training is configured with: `train_loop_config`, or the parameters of a
            library.
        """

    def after_report(
        self,
        run_context: RunContext,
        metrics: Sequence[Mapping[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Follow a report of all ranks: `metrics` has one mapping a rank, by world rank."""

    def after_exception(
        self, run_context: RunContext, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        """Follow the failure of an attempt: what each failed rank raised, by world rank."""

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        """Follow the end of the run, however it ended."""
