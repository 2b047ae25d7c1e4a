"""`StopAgreement`: let all ranks stop after the same report, without a barrier in ``report()``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import RunStoppedError
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.own_time import LONGEST_GAP_S, Deadline

# srun sends SIGTERM to the other ranks when one has died, and that may be known here later.
_TERM_DOUBT_S = 0.5


class StopAgreement:
    """Asks the ranks how far they are (``freeze``), then sends where to stop (``stop``).

    Until the second message no rank begins a further report, so the answer still holds when it
    arrives. Ranks that do not ask ``should_stop()`` continue where the stop is only for more
    workers or a slow node (``unwind`` is false); for a reason that weighs more later, both messages
    are sent again. One object an attempt.

    Parameters
    ----------
    recorder
        Holds the stop decision.
    tracker
        Holds the answers.
    broadcast
        Sends a command to all ranks.
    take_signals
        Requests the stop that follows from signals which ranks have passed on. It is called again
        for the same ones.
    nodes
        Ranks of each node, by host name.
    """

    def __init__(
        self,
        recorder: Recorder,
        tracker: AttemptTracker,
        broadcast: Callable[..., None],
        *,
        take_signals: Callable[[Sequence[str]], None] | None = None,
        nodes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self._broadcast = broadcast
        self._take_signals = take_signals or self._take_as_preemption
        self._nodes = dict(nodes or {})
        self._signalled_at: float | None = None
        self._notice: StopNotice | None = None
        self._patience_s: float = timeouts.STOP_AGREEMENT_S
        self._deadline = Deadline(self._patience_s)
        self._asked = False
        self._agreed_on: StopNotice | None = None

    def step(self) -> None:
        """Take the next step if there is one to take.

        Raises
        ------
        RunStoppedError
            If the ranks do not return although they were asked to stop.
        """
        recorder = self._recorder
        self._look_at_signals()
        notice = recorder.stop
        if notice is None:
            return
        if notice is not self._notice:
            self._notice = notice
            self._patience_s = patience_s(notice, now=time.time())
            # The job ends at its deadline, even while this process is suspended.
            gap_s = LONGEST_GAP_S if notice.deadline is None else math.inf
            self._deadline = Deadline(self._patience_s, longest_gap_s=gap_s)
        self._agree(notice)
        if self._deadline.is_over:
            raise RunStoppedError(
                f"the run was to stop because {notice.why}, but its ranks did not return within "
                f"{timeouts.describe(self._patience_s)}. They were ended; the run resumes from "
                f"{recorder.checkpoint_path() or 'its beginning'}. A training function that asks "
                f"should_stop() after each report() can save first."
            )

    def _agree(self, notice: StopNotice) -> None:
        if self._agreed_on is not None and notice is not self._agreed_on:
            if _unwinds(self._agreed_on):
                # Ranks may have acted on it.
                return
            self._asked, self._agreed_on = False, None
            self._tracker.forget_answers()
        # Ranks that have no session yet would not receive it.
        if not self._asked and self._tracker.phase != "mpi":
            self._asked = True
            self._broadcast("freeze")
        if self._agreed_on is None and self._tracker.stop_report is not None:
            self._agreed_on = notice
            self._broadcast(
                "stop",
                report=self._tracker.stop_report,
                unwind=_unwinds(notice),
                **self._describe(notice),
            )

    def _look_at_signals(self) -> None:
        signals = self._tracker.signals
        if not signals or self._tracker.has_failed:
            return
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        if signals != ["SIGTERM"] * len(signals) or now - self._signalled_at > _TERM_DOUBT_S:
            self.stop_for_signals()

    def stop_for_signals(self) -> None:
        """Stop for the signals that ranks have passed on, if there are any."""
        if self._tracker.signals:
            self._take_signals(self._tracker.signals)

    def _take_as_preemption(self, names: Sequence[str]) -> None:
        if self._recorder.decision.yields_to(StopKind.PREEMPTION):
            why = f"its ranks got {names[0]}"
            self._recorder.request_stop(StopNotice(kind=StopKind.PREEMPTION, why=why))

    def _describe(self, notice: StopNotice) -> dict[str, Any]:
        """Return what is sent to ranks of a job that ends."""
        if notice.kind.failure is None:
            return {}
        return {"leave": {"deadline": notice.deadline, "nodes": self._nodes}}


def patience_s(notice: StopNotice, *, now: float) -> float:
    """Return how long ranks have to save and return, in seconds. Pure; not collective.

    Without end where the goal is met: an epoch may last for hours, and nothing depends on its end.
    """
    if notice.kind is StopKind.GOAL:
        return math.inf
    if notice.deadline is None:
        return timeouts.STOP_AGREEMENT_S
    left = max(0.0, notice.deadline - now)
    limit = max(left / 2, left - timeouts.JOB_END_S)
    patience = (
        timeouts.set_by("SlurmConfig(stop_notice_s=...)", limit)
        if notice.kind is StopKind.TIME_LIMIT
        else timeouts.set_by(f"timeout {timeouts.JOB_END_S.name}", limit)
    )
    # Only for the end of the job ranks have all the time up to it.
    return patience if notice.kind.failure is not None else min(patience, timeouts.STOP_AGREEMENT_S)


def _unwinds(notice: StopNotice) -> bool:
    return notice.kind is not StopKind.RESIZE
