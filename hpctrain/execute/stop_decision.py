"""`StopDecision`: whether a run is to stop, and for which of several reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hpctrain.rundir.history import FailureKind


class StopKind(str, Enum):
    """Why a run is to stop."""

    GOAL = "goal"
    """``RunConfig(stop=...)`` is met: it is finished."""
    REQUEST = "request"
    """A person asked for it."""
    TOTAL_TIME = "total-time"
    """``RunConfig(total_time=...)`` is used up."""
    TIME_LIMIT = "time-limit"
    """The job comes to its end."""
    PREEMPTION = "preemption"
    """The job is about to be taken away."""
    RESIZE = "resize"
    """The next attempt has more workers, or no slow node, in the same job."""

    @property
    def weight(self) -> int:
        """The reason that weighs more takes the place of another."""
        return _WEIGHTS[self]

    @property
    def failure(self) -> FailureKind | None:
        """What it counts as; None where the run is not meant to continue by itself."""
        return _FAILURES.get(self)


# A resize can wait, and so can a run that has met its stop criterion. A person's request overrides
# everything else: the run is not to continue in another job.
_WEIGHTS: Mapping[StopKind, int] = {
    StopKind.RESIZE: 0,
    StopKind.GOAL: 1,
    StopKind.TOTAL_TIME: 2,
    StopKind.TIME_LIMIT: 2,
    StopKind.PREEMPTION: 2,
    StopKind.REQUEST: 3,
}
_FAILURES: Mapping[StopKind, FailureKind] = {
    StopKind.TIME_LIMIT: FailureKind.TIME_LIMIT,
    StopKind.PREEMPTION: FailureKind.PREEMPTION,
}


@dataclass(frozen=True, kw_only=True)
class StopNotice:
    """That a run is to stop, and why."""

    kind: StopKind
    why: str
    """A sentence's end: "the run stopped because ..."."""
    deadline: float | None = None
    """When its job ends, in seconds since the epoch; None if that is not known."""


@dataclass(frozen=True, kw_only=True)
class MetCriterion:
    """That a report has met ``RunConfig(stop=...)``."""

    report: int
    """Its number."""
    notice: StopNotice
    """The stop that follows from it."""


@dataclass(frozen=True, kw_only=True)
class StopDecision:
    """Whether a run is to stop, and why. A value: each event returns another one."""

    notice: StopNotice | None = None
    """The reason that stands; None while the run is not to stop."""
    criterion: MetCriterion | None = None
    """That the stop criterion is met, also where a reason that weighs more stands."""

    @property
    def reason(self) -> str | None:
        """Why the run is to stop, in words; None while it is not."""
        return None if self.notice is None else self.notice.why

    def yields_to(self, kind: StopKind) -> bool:
        """Return whether a reason of this kind would take the place of what stands."""
        return self.notice is None or kind.weight > self.notice.kind.weight

    def after_request(self, notice: StopNotice) -> StopDecision:
        """Return the decision after another reason to stop; of two equal ones the first stands.

        The job ends when it ends, whatever the reason: the earlier deadline is kept.
        """
        if self.notice is None:
            return replace(self, notice=notice)
        stands = notice if self.yields_to(notice.kind) else self.notice
        return self._standing(stands, _earlier(self.notice.deadline, notice.deadline))

    def after_answer(self, before: StopNotice, after: StopNotice) -> StopDecision:
        """Return the decision once more is known of a reason that was given.

        Parameters
        ----------
        before
            The reason as it was given. If another one stands meanwhile, that stays.
        after
            What it has turned out to be.
        """
        if self.notice is None:
            return self
        if (self.notice.kind, self.notice.why) != (before.kind, before.why):
            return self.after_request(after)
        return self._standing(after, _earlier(self.notice.deadline, after.deadline))

    def _standing(self, notice: StopNotice, deadline: float | None) -> StopDecision:
        # A decision that stays the same object has not changed for who acts on it.
        if notice.deadline != deadline:
            notice = replace(notice, deadline=deadline)
        return self if notice is self.notice else replace(self, notice=notice)

    def after_withdrawal(self, kind: StopKind) -> StopDecision:
        """Return the decision once a reason of this kind holds no more; another one stays."""
        if self.notice is None or self.notice.kind is not kind:
            return self
        return replace(self, notice=None)

    def after_criterion(self, report: int, why: str) -> StopDecision:
        """Return the decision after a report that met the stop criterion; the first one counts."""
        if self.criterion is not None:
            return self
        notice = StopNotice(kind=StopKind.GOAL, why=why)
        met = replace(self, criterion=MetCriterion(report=report, notice=notice))
        return met.after_request(notice)

    def after_restart(self, saved: int) -> StopDecision:
        """Return the decision with which another attempt begins.

        Parameters
        ----------
        saved
            Report of the checkpoint that it resumes from. A report up to it is not made again, so
            a criterion that it has met stays met; one that a later report has met does not.
        """
        if self.criterion is None:
            return self
        if self.criterion.report <= saved:
            return self.after_request(self.criterion.notice)
        return replace(self, criterion=None)

    @property
    def ends_early(self) -> bool:
        """Whether the run is to stop for another reason than that it met its stop criterion."""
        return self.notice is not None and self.notice.kind is not StopKind.GOAL

    def leaves_unfinished(self, *, notified: bool) -> bool:
        """Return whether ranks that have returned have more to do.

        Parameters
        ----------
        notified
            Whether a rank knew that it should stop. Otherwise all have come to their own end.
        """
        return self.notice is not None and notified and self.criterion is None


def _earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two deadlines, of which none may be known."""
    return min((each for each in (one, other) if each is not None), default=None)
