"""`JobSlots`: how many trials have a Slurm job of their own at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hpctrain.tune.slots import Need, Slot

DEFAULT_MAX_JOBS = 8
_FIRST_WAIT_S = 30.0
_LONGEST_WAIT_S = 600.0
_MOST_DOUBLINGS = 10
# A job is over a second or two after its run, unless its node is slow.
_FIRST_QUESTION_S = 1.0
_LONGEST_QUESTION_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """That Slurm has not taken a further job of a sweep."""

    jobs: int
    """Jobs that the sweep had then."""
    at: float
    """When it was, in seconds of a monotonic clock."""
    times: int = 1
    """How often in a row."""

    @property
    def wait_s(self) -> float:
        """Seconds until as many jobs are tried again."""
        doubled: float = _FIRST_WAIT_S * 2.0 ** min(self.times - 1, _MOST_DOUBLINGS)
        return min(doubled, _LONGEST_WAIT_S)


def count_new_jobs(*, max_jobs: int, jobs: int, refusal: Refusal | None, now: float) -> int:
    """Return how many more jobs a sweep may submit now. Pure.

    After a refusal the sweep has no more jobs than Slurm took, and tries one more from time to
    time.

    Parameters
    ----------
    max_jobs
        Jobs that it may have at most.
    jobs
        Jobs that it has.
    refusal
        The last one, if Slurm has not taken more jobs since.
    now
        Seconds of a monotonic clock.

    Examples
    --------
    >>> count_new_jobs(max_jobs=8, jobs=5, refusal=None, now=0.0)
    3
    >>> refusal = Refusal(jobs=5, at=0.0)
    >>> [count_new_jobs(max_jobs=8, jobs=n, refusal=refusal, now=1.0) for n in (3, 4, 5)]
    [2, 1, 0]
    >>> count_new_jobs(max_jobs=8, jobs=5, refusal=refusal, now=30.0)
    1
    """
    room = max(max_jobs - jobs, 0)
    if refusal is None:
        return room
    if jobs < refusal.jobs:
        return min(room, refusal.jobs - jobs)
    return min(room, 1) if now - refusal.at >= refusal.wait_s else 0


def most_jobs(max_jobs: int | None, max_concurrent_trials: int | None) -> int:
    """Return how many jobs a sweep has at most, by the fields of its TuneConfig. Pure.

    Examples
    --------
    >>> most_jobs(None, None), most_jobs(20, None), most_jobs(20, 4), most_jobs(None, 12)
    (8, 20, 4, 12)
    """
    given = [count for count in (max_jobs, max_concurrent_trials) if count is not None]
    return min(given, default=DEFAULT_MAX_JOBS)


class JobSlots:
    """The slots of a sweep whose trials are jobs; a trial has one while its job waits or runs.

    Parameters
    ----------
    max_jobs
        Jobs that wait or run at the same time.
    job_of
        Returns the job that a trial has, or had last; None if there is none.
    find_live
        Returns those of some jobs that wait or run. Asks Slurm once, and raises nothing.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        max_jobs: int,
        *,
        job_of: Callable[[str], str | None],
        find_live: Callable[[Collection[str]], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_jobs = max_jobs
        self._job_of, self._find_live, self._clock = job_of, find_live, clock
        self._taken: set[str] = set()
        # Of runs that are over: a job ends somewhat later.
        self._leaving: set[str] = set()
        self._ask_at, self._interval_s = 0.0, _FIRST_QUESTION_S
        self._refusal: Refusal | None = None

    def fits(self, need: Need) -> bool:
        """Return whether another job may be submitted. Not collective."""
        return self._room() > 0

    def take(self, trial: str, need: Need) -> Slot | None:
        """Take a slot; return it, or None if the trial has to wait. Not collective."""
        if not self.fits(need):
            return None
        self._taken.add(trial)
        return Slot()

    def keep(self, trial: str, need: Need, slot: Slot) -> None:
        """Note that a trial has a job already. Not collective."""
        self._taken.add(trial)

    def give_back(self, trial: str) -> None:
        """Note that the run of a trial is over; its slot is free once its job is, too.

        Not collective.
        """
        if trial not in self._taken:
            return
        self._taken.discard(trial)
        if (job_id := self._job_of(trial)) is not None:
            self._leaving.add(job_id)
            self._ask_at = self._clock() + _FIRST_QUESTION_S
            self._interval_s = _FIRST_QUESTION_S

    def put_off(self, trial: str) -> bool:
        """Note that Slurm took no job of a trial; return whether that is news. Not collective."""
        self._taken.discard(trial)
        times = 1 if self._refusal is None else self._refusal.times + 1
        jobs = len(self._taken) + len(self._leaving)
        self._refusal = Refusal(jobs=jobs, at=self._clock(), times=times)
        return times == 1

    def leave_out(self, node: str, reason: str) -> bool:
        """Return that no node is left out: Slurm chooses them. Not collective."""
        return False

    def _room(self) -> int:
        if self._refusal is not None and len(self._taken) > self._refusal.jobs:
            # Slurm has taken more than it did then.
            self._refusal = None
        now = self._clock()
        room = self._count(len(self._taken) + len(self._leaving), now)
        if (
            room
            or not self._leaving
            or now < self._ask_at
            or not self._count(len(self._taken), now)
        ):
            return room
        self._interval_s = min(2 * self._interval_s, _LONGEST_QUESTION_S)
        self._ask_at = now + self._interval_s
        self._leaving &= set(self._find_live(self._leaving))
        return self._count(len(self._taken) + len(self._leaving), now)

    def _count(self, jobs: int, now: float) -> int:
        return count_new_jobs(max_jobs=self._max_jobs, jobs=jobs, refusal=self._refusal, now=now)
