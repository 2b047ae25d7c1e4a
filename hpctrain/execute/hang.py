"""`HangWatch`: notice that ranks make no progress, find out where they are, and name who hangs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.config import FailureConfig
from hpctrain.errors import WorkerHangError
from hpctrain.execute.left_behind import describe_left_behind
from hpctrain.execute.progress import Progress
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.waits import (
    ask_where_ranks_are,
    explain_waits,
    main_thread_as_seen,
    rank_waits,
)
from hpctrain.frames import user_part_of_stack
from hpctrain.rundir.display import counted
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.failure import RankFailure

if TYPE_CHECKING:
    from hpctrain.execute.pending_calls import Explanation

_LOOK_INTERVAL_S = 0.5
_MAX_NAMED = 8
_IN_TRAINING = ("training", "checkpoint")


@dataclass(frozen=True)
class _Inquiry:
    """The ranks were asked where they are."""

    stalled: tuple[int, ...]
    asked_at: float
    """When they were asked, or their agents were."""
    examined: tuple[int, ...] = ()
    """Ranks whose agents were asked."""
    is_left_behind: bool = False
    """Whether others have returned, and nothing else is wrong."""


class HangWatch:
    """Watches one attempt.

    Parameters
    ----------
    progress
        How far each rank is.
    config
        How long they may take.
    broadcast
        Sends a command to all ranks.
    examine
        Asks for a look at ranks from outside: the pids of all, and those that do not answer.
    workers
        Where the ranks live, by rank.
    paths, attempt
        Where stacks are written.
    checkpoint
        Returns the newest complete checkpoint.
    note
        Writes an event into the ledger.
    may_end
        Whether ranks can be ended; otherwise all is only written down.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        config: FailureConfig,
        broadcast: Callable[[str], None],
        examine: Callable[[Mapping[int, int], Sequence[int]], None],
        workers: Sequence[WorkerMetadata] | Mapping[int, WorkerMetadata],
        paths: RunPaths,
        attempt: int,
        checkpoint: Callable[[], Path | None],
        note: Callable[..., None],
        may_end: bool = True,
    ) -> None:
        self._progress = progress
        self._may_end = may_end
        self._ends = config.hang_timeout_s is not None
        self._training_s = config.hang_timeout_s or timeouts.SUSPICIOUS_SILENCE_S
        self._others_s = config.start_timeout_s
        self._broadcast = broadcast
        self._examine = examine
        self._workers = workers
        self._paths = paths
        self._attempt = attempt
        self._checkpoint = checkpoint
        self._note = note
        self._look_at = 0.0
        self._inquiry: _Inquiry | None = None
        self._reported: tuple[int, ...] = ()
        self._left_behind: set[int] = set()
        self.stalled = ""
        """Who makes no progress and where they are, as long as that is so."""

    def step(self) -> None:
        """Take the next step if there is one to take.

        Raises
        ------
        WorkerHangError
            If ranks have made no progress for as long as the configuration allows.
        """
        now = self._progress.now
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_INTERVAL_S
        if self._inquiry is not None:
            self._continue(self._inquiry, now)
            return
        stalled = tuple(self._stalled())
        behind = self._progress.left_behind(timeouts.LEFT_BEHIND_S)
        if not stalled:
            self._reported = ()
            if not behind:
                self.stalled = ""
        if set(stalled) - set(self._reported):
            self._ask(_Inquiry(stalled, now))
        elif set(behind) - self._left_behind:
            self._ask(_Inquiry(tuple(behind), now, is_left_behind=True))

    def _stalled(self) -> list[int]:
        return self._progress.stalled(training_s=self._training_s, others_s=self._others_s)

    def _ask(self, inquiry: _Inquiry) -> None:
        self._inquiry = inquiry
        ask_where_ranks_are(self._progress, self._broadcast, self._paths, self._attempt)

    def _continue(self, inquiry: _Inquiry, now: float) -> None:
        progress = self._progress
        waited_s = now - inquiry.asked_at
        asked = inquiry.stalled if inquiry.is_left_behind else progress.unfinished()
        silent = [rank for rank in asked if rank not in progress.stacks]
        if not inquiry.examined:
            answered = all(map(progress.has_answered, asked))
            if not answered and waited_s < timeouts.STACKS_S:
                return
            looks_at_all = self._will_end() and not inquiry.is_left_behind
            examined = tuple(asked if looks_at_all else silent)
            if examined:
                self._inquiry = replace(inquiry, asked_at=now, examined=examined)
                self._examine({rank: self._workers[rank].pid for rank in examined}, silent)
                return
        elif set(inquiry.examined) - set(progress.seen) and waited_s < timeouts.EXAMINATION_S:
            return
        self._inquiry = None
        if inquiry.is_left_behind:
            self._report_left_behind(now)
            return
        # Meanwhile they may have gone on.
        still = tuple(rank for rank in self._stalled() if rank in inquiry.stalled)
        if still:
            named = find_culprits(progress, still, silent)
            if all(rank_waits(progress, rank) for rank in named):
                # Whom they wait for may have stopped a little later than they did.
                quiet = [r for r in progress.unfinished() if progress.since(r) <= inquiry.asked_at]
                named = find_culprits(progress, quiet, silent)
            why = explain_waits(progress)
            gone = progress.returned()
            if not silent and (missing := [rank for rank in why.missing if rank not in gone]):
                # Of these, one that waits for a send or in MPI is held up itself.
                named = [rank for rank in missing if not rank_waits(progress, rank)] or missing
            self._conclude(named, still, now, why)

    def _report_left_behind(self, now: float) -> None:
        progress = self._progress
        behind = progress.left_behind(timeouts.LEFT_BEHIND_S)
        if not behind:
            return
        self._left_behind.update(behind)
        first, waits = behind[0], rank_waits(progress, behind[0])
        self.stalled = describe_left_behind(
            {rank: self._workers[rank].hostname for rank in behind},
            returned=progress.returned(),
            where=progress.describe(first) + ("" if waits else self._explain(first)),
            since=_clock(now - progress.since(first)),
            stacks={rank: self._stack(rank) for rank in behind},
            waits=waits,
            consequence=self._consequence(),
            calls=explain_waits(progress).lines,
        )
        what, *_ = self.stalled.splitlines()
        self._note("left-behind", attempt=self._attempt, ranks=behind, what=what)

    def _consequence(self) -> str:
        if not self._may_end:
            return "Ranks that hpctrain did not start are not ended."
        if not self._ends:
            return (
                "It is not ended, as it may have work of its own: "
                "FailureConfig(hang_timeout_s=...) is not set."
            )
        return (
            f"After {self._training_s:g} s without progress it is ended: "
            f"FailureConfig(hang_timeout_s={self._training_s:g})."
        )

    def _will_end(self) -> bool:
        """Return whether ranks have had their time, and not only that of a suspicion."""
        if self._ends or not self._may_end:
            return self._may_end
        return any(self._progress.phase(rank) not in _IN_TRAINING for rank in self._stalled())

    def _conclude(
        self, named: list[int], stalled: tuple[int, ...], now: float, explanation: Explanation
    ) -> None:
        self._reported = stalled
        what, ends = self._describe(named, now), self._will_end()
        message = "\n".join(
            [
                what + self._explain(named[0], is_known=bool(explanation.lines)),
                *(f"  {line[0].upper()}{line[1:]}" for line in explanation.lines),
                *self._describe_others(named),
                *([f"  {self._describe_limit(stalled)}"] if ends else []),
                f"  Stacks: {self._paths.stacks(self._attempt)}   "
                f"Last complete checkpoint: {self._checkpoint() or 'none'}",
            ]
        )
        stack = self._stack(named[0])
        self._note(
            "hang" if ends else "hang-suspected",
            attempt=self._attempt,
            ranks=named,
            stalled=len(stalled),
            what=what,
        )
        if ends:
            error = WorkerHangError(
                message + (f"\n\n{stack}" if stack else ""),
                rank=named[0],
                hostname=self._workers[named[0]].hostname,
                worker_failures={rank: TimeoutError(self._describe([rank], now)) for rank in named},
            )
            error.brief = what
            raise error
        why = (
            "FailureConfig(hang_timeout_s=...) is not set"
            if self._may_end
            else "ranks that hpctrain did not start are not ended"
        )
        self.stalled = f"{message}\n  The run continues: {why}."

    def _describe_limit(self, stalled: Sequence[int]) -> str:
        """Return which setting ends ranks without progress."""
        in_training = self._ends and self._progress.phase(stalled[0]) in _IN_TRAINING
        name, limit_s = (
            ("hang_timeout_s", self._training_s)
            if in_training
            else ("start_timeout_s", self._others_s)
        )
        return f"Limit of the time without progress: FailureConfig({name}={limit_s:g})"

    def failures(self, error: WorkerHangError) -> list[RankFailure]:
        """Return what is written down of each rank that was named."""
        return [
            RankFailure(
                rank=rank,
                hostname=self._workers[rank].hostname,
                pid=self._workers[rank].pid,
                report=self._progress.reports(rank),
                phase=self._progress.phase(rank),
                type=type(error).__name__,
                message=str(failure) + self._explain(rank),
                traceback=self._stack(rank),
                time=time.time(),
            )
            for rank, failure in error.worker_failures.items()
        ]

    def _describe(self, named: Sequence[int], now: float) -> str:
        first = named[0]
        size = len(self._progress)
        silent_s = now - self._progress.since(first)
        since = _clock(silent_s)
        if len(named) == 1:
            who = f"rank {first} of {size} on {self._workers[first].hostname} hangs"
        elif len(named) == size:
            who = f"all {size} ranks hang"
        else:
            shown = ", ".join(
                f"{rank} ({self._workers[rank].hostname})" for rank in named[:_MAX_NAMED]
            )
            more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
            who = f"ranks {shown}{more} of {size} hang"
        return (
            f"{who} {self._progress.describe(first)}: no progress for {silent_s:.0f} s, since "
            f"{since}"
        )

    def _explain(self, rank: int, *, is_known: bool = False) -> str:
        """Return what is known of why.

        Parameters
        ----------
        is_known
            Whether it is known what ranks wait in.
        """
        if reason := self._progress.reasons.get(rank):
            return f"; {reason}"
        if rank not in self._progress.stacks:
            return "; it does not answer"
        if not is_known and rank_waits(self._progress, rank):
            return (
                "; it waits for other ranks, which may have left, or not entered, what it waits in"
            )
        return ""

    def _describe_others(self, named: Sequence[int]) -> list[str]:
        others = Counter(
            self._progress.describe(rank)
            + (", waiting for others" if rank_waits(self._progress, rank) else "")
            for rank in range(len(self._progress))
            if rank not in named
        )
        if not others:
            return []
        listed = "; ".join(
            f"{counted(count, 'other rank')} {how}" for how, count in others.most_common(4)
        )
        return [f"  {listed}"]

    def _stack(self, rank: int) -> str:
        stack = self._progress.stacks.get(rank) or main_thread_as_seen(
            self._progress.seen.get(rank, "")
        )
        return user_part_of_stack(stack)


def _clock(seconds_ago: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - seconds_ago))


def find_culprits(progress: Progress, stalled: Sequence[int], silent: Sequence[int]) -> list[int]:
    """Return which of the ranks without progress are to be named.

    Not collective. One rank that hangs makes all stop that share a collective with it. First those
    that cannot answer; then those that have come less far than others; then those that do not wait
    for others, if others do. What is left may be all of them.
    """
    if mute := [rank for rank in stalled if rank in silent]:
        return mute
    behind = progress.furthest_behind(stalled)
    return [rank for rank in behind if not rank_waits(progress, rank)] or behind
