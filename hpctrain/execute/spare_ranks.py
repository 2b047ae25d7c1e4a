"""`SpareRanks`: the ranks of an attempt that may follow, which wait in a step until it begins.

Of a restart in a job most is the new step: Slurm creates it, starts a task for each rank, and the
tasks import. So the step of the next attempt is started while the ranks of this one train. Its
ranks are as those of any step, and wait before ``MPI_Init``, connected to the agent of their node.
They are an offer: where they have not come, an attempt starts a step as if there were none.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.process import StepProcess
from hpctrain.log import log as print_note
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.files import may_pass
from hpctrain.rundir.history import FailureKind, History
from hpctrain.worker.import_stamps import stamp

if TYPE_CHECKING:
    from hpctrain.config import FailureConfig
    from hpctrain.plan.launch_plan import LaunchPlan

_MOST_UNUSED = 3


class SpareRanks:
    """At most one group of ranks at a time, for the attempt after the one that runs.

    Parameters
    ----------
    may_restart
        Returns whether ranks would start again after another failure.
    """

    settle_s = 5.0
    """Seconds after the last news of ranks that start: they need the CPUs."""

    def __init__(self, may_restart: Callable[[], bool]) -> None:
        self._may_restart = may_restart
        self._step: StepProcess | None = None
        self._name = ""
        self._made_for: object = None
        self._places: dict[str, int] = {}
        self._expected = Deadline(0.0)
        self._settled: Deadline | None = None
        self._has_begun = False
        self._num_unused = 0
        self._is_usable = True
        self.taken = ""
        """What the agents know those by that begin with this attempt; empty if none do."""

    @property
    def is_taken(self) -> bool:
        """Whether the ranks of this attempt have waited for it."""
        return bool(self.taken)

    @property
    def name(self) -> str:
        """What the agents know those by that wait."""
        return self._name

    @property
    def has_ended(self) -> bool:
        """Whether no step is there whose ranks could come."""
        return self._step is None or self._step.returncode() is not None

    def note_progress(self) -> None:
        """Note that ranks of this attempt are still starting. Not collective."""
        self._settled = Deadline(self.settle_s)

    def prepare(self, made_for: object, start: Callable[[str], StepProcess | None]) -> None:
        """Start the ranks of the next attempt, once those of this one have started.

        Not collective. Not waited for. Never raises.

        Parameters
        ----------
        made_for
            The attempt, and all in which its start may be another than that of this one.
        start
            Starts ranks, which agents know by what it is called with; returns None where none can
            wait.
        """
        if self._settled is None or not self._settled.is_over or self._has_begun:
            return
        self._settled, self._has_begun = None, True
        if self._is_usable and self._may_restart():
            self.begin(made_for, start)

    def begin(self, made_for: object, start: Callable[[str], StepProcess | None]) -> None:
        """Start the ranks of the next attempt now. Otherwise as `prepare`."""
        self._has_begun = True
        self._name = os.urandom(8).hex()
        self._made_for = made_for
        self._places = {place: stamp(place) for place in _package_places()}
        # Those of a new step would not come sooner.
        # It is looked at when the ranks of this attempt have failed, and not before.
        self._expected = Deadline(timeouts.SPARE_RANKS_S, longest_gap_s=ANY_GAP_S)
        try:
            self._step = start(self._name)
        except LaunchError as error:
            self._note_failed_start(error, is_transient=error.transient)
        except OSError as error:
            self._note_failed_start(error, is_transient=may_pass(error))

    def take(
        self,
        made_for: object,
        *,
        size: int,
        log: Path,
        find: Callable[[str], Sequence[bytes] | None],
    ) -> StepProcess | None:
        """Return the step of the ranks that have waited for an attempt; None if there is none.

        Not collective. The agents are to let those of `taken` begin.

        Parameters
        ----------
        made_for
            The attempt, as `prepare` has it.
        size
            Number of its ranks.
        log
            What the file with their output is to be.
        find
            Returns what those of some ranks have sent that have come to the agents; None where
            other agents are needed. One rank has sent when what it has imported was changed.
        """
        self._settled, self._has_begun, self.taken = None, False, ""
        if self._step is None:
            return None
        name, reason = self._name, self._why_not(made_for, size, find(self._name))
        if reason is None:
            try:
                os.rename(self._step.log, log)
            except OSError as error:
                reason = f"their output cannot be renamed: {error}"
        if reason is not None:
            self._leave_unused(reason)
            return None
        step, self._step = self._step, None
        step.log = log
        self._num_unused, self.taken = 0, name
        return step

    def omit(self) -> None:
        """Let no ranks wait for the attempt after this one. Not collective."""
        self._has_begun = True
        self.end()

    def give_up(self, reason: str) -> None:
        """Let no ranks wait from here on. Not collective."""
        if self._is_usable:
            self._is_usable = False
            print_note(f"note: no ranks of this run wait for its next attempt any more: {reason}")
        self.end()

    def end(self) -> None:
        """End the ranks that wait. Not collective. Their end is not waited for."""
        step, self._step = self._step, None
        if step is None:
            return
        with suppress(OSError):
            step.log.unlink()
        # The interpreter waits for it, as this is no daemon.
        threading.Thread(target=step.kill, name="hpctrain-spare").start()

    def _why_not(self, made_for: object, size: int, waiting: Sequence[bytes] | None) -> str | None:
        """Return why the ranks cannot be those of an attempt; empty if that needs no words."""
        assert self._step is not None
        if self._made_for != made_for or waiting is None:
            return ""
        if self._step.returncode() is not None:
            return f"their step has ended{self._last_words()}"
        is_late = self._expected.is_over or self._step.last_lines()
        if len(waiting) < size and is_late:
            after = f" after {timeouts.describe(timeouts.SPARE_RANKS_S)}"
            come = f"{len(waiting)} of {size} have come{after if self._expected.is_over else ''}"
            return f"{come}{self._last_words()}"
        stamps = self._places
        for content in filter(None, waiting):
            stamps = {**json.loads(content), **stamps}
        # What ranks import later would not belong to what these have.
        return "" if any(stamp(path) != then for path, then in stamps.items()) else None

    def _last_words(self) -> str:
        assert self._step is not None
        last = self._step.last_lines(1)
        return f": {last}" if last else ""

    def _leave_unused(self, reason: str) -> None:
        self.end()
        if not reason:
            return
        self._num_unused += 1
        print_note(f"note: ranks start in a new step, not in the one that waited: {reason}")
        self._give_up_at_last()

    def _note_failed_start(self, error: Exception, *, is_transient: bool) -> None:
        if not is_transient:
            self.give_up(str(error))
            return
        self._num_unused += 1
        print_note(f"note: no ranks wait for the next attempt: {error}")
        self._give_up_at_last()

    def _give_up_at_last(self) -> None:
        if self._num_unused >= _MOST_UNUSED:
            self.give_up(f"{self._num_unused} steps in a row could not be used")


def may_restart(history: History, config: FailureConfig) -> bool:
    """Return whether ranks would start again after one more failure of theirs.

    Not collective.
    """
    had = history.failures.get(FailureKind.WORKER, 0)
    return config.max_failures == -1 or had < config.max_failures


def spare_ranks_for(
    plan: LaunchPlan, config: FailureConfig, history: Callable[[], History]
) -> SpareRanks | None:
    """Return what keeps ranks for the next attempt of a run; None where none are to wait.

    Not collective. Trials of a sweep have steps that are kept for them, and ranks in a container or
    a packed environment are looked at before each start.

    Parameters
    ----------
    config
        How often ranks start again.
    history
        Returns what has gone wrong so far.
    """
    is_possible = plan.in_job and not plan.is_slice and environ.wants_fork_server()
    if not is_possible or plan.container is not None or plan.environment_pack is not None:
        return None
    return SpareRanks(lambda: may_restart(history(), config))


def _package_places() -> list[str]:
    # Another package there is a reason not to start from what was imported before.
    from hpctrain.worker.preload import package_places

    return package_places()
