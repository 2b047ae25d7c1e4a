"""`SlowNodes`: asks ranks how long their steps take, and names nodes that hold all others up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain import timeouts
from hpctrain.execute.progress import Progress
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.stragglers import SlowRank, StepHistory
from hpctrain.log import log
from hpctrain.rundir.display import list_ranks
from hpctrain.worker.load import explain_load
from hpctrain.worker.step_times import StepTimes, decode_step_times

_LEAST_INTERVAL_S = 0.5
# Where there are no times: the backend has none, or steps take long.
_LONGEST_INTERVAL_S = 30.0
# Reading may cost a rank 0.1 % of its time, and the executor 2 %.
_READINGS_PER_COST = 1000
_READINGS_PER_OWN_COST = 50


@dataclass(frozen=True, kw_only=True)
class SlowNode:
    """A node that has held up the steps of all ranks for long."""

    node: str
    """Its host name."""
    node_rank: int
    ranks: tuple[int, ...]
    """Those of its ranks that are slow."""
    factor: float
    """How many times as long steps take as without it."""
    since: int
    """Step with which it began."""
    until: int
    """The last step that has been looked at."""
    reasons: tuple[str, ...] = ()
    """What it suffers from, as far as its kernel shows it."""

    def __str__(self) -> str:
        """Return what is wrong with it, in a sentence without its end."""
        one = len(self.ranks) == 1
        who = f"rank {self.ranks[0]}" if one else f"ranks {list_ranks(self.ranks)}"
        why = "; ".join(self.reasons) or "its kernel shows no reason"
        return (
            f"{who} on {self.node} make{'s' if one else ''} every step {self.factor:.1f} times as "
            f"long, since step {self.since} of the attempt: {why}"
        )


class SlowNodes:
    """Watches one attempt.

    Parameters
    ----------
    progress
        Has the answers of ranks.
    broadcast
        Sends a command to ranks.
    workers
        Where the ranks live.
    note
        Writes an event into the ledger.
    attempt
        Number of the attempt.
    advice
        Returns what a person can do about a node.
    on_times
        Is given the times of steps, by rank, whenever ranks have answered.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        broadcast: Callable[..., None],
        workers: Sequence[WorkerMetadata],
        note: Callable[..., None],
        attempt: int,
        advice: Callable[[SlowNode], str],
        on_times: Callable[[Mapping[int, Sequence[StepTimes]]], None] = lambda times: None,
    ) -> None:
        self._progress = progress
        self._broadcast = broadcast
        self._workers = workers
        self._note = note
        self._attempt = attempt
        self._advice = advice
        self._on_times = on_times
        self._history = StepHistory(world_size=len(progress))
        self._ask_at = time.monotonic() + _LEAST_INTERVAL_S
        self._asked_at: float | None = None
        self._interval_s = _LEAST_INTERVAL_S
        self._is_early = False
        self._suspects: dict[str, SlowNode] = {}
        self._fastest = 0
        self._explain_at = 0.0
        self.slow: dict[str, tuple[SlowNode, float]] = {}
        """Nodes that have been named, and when, in seconds of ``time.monotonic``."""

    @property
    def text(self) -> str:
        """What the status shows; empty while no node is slow."""
        return "\n".join(str(slow) for slow, _ in self.slow.values())

    def step(self) -> None:
        """Take the next step if there is one to take. Not collective."""
        now, progress = time.monotonic(), self._progress
        if self._asked_at is None:
            if now >= self._ask_at and len(progress) > 1:
                self._ask(now)
        elif len(progress.step_times) == len(progress):
            self._take(now)
        elif now - self._asked_at > timeouts.STEP_TIMES_S:
            self._asked_at = None
        if self._suspects:
            self._explain(now)

    def _ask(self, now: float) -> None:
        if any(self._progress.phase(rank) != "training" for rank in range(len(self._progress))):
            # Some have not begun, save, or have returned.
            self._ask_at = now + _LEAST_INTERVAL_S
            return
        self._progress.step_times.clear()
        self._asked_at = now
        self._broadcast("step-times", after=self._history.last_step)

    def _take(self, now: float) -> None:
        answers = self._progress.step_times
        before = self._history
        times = {rank: decode_step_times(body) for rank, (body, _) in answers.items()}
        self._history = before.after(times)
        self._on_times(times)
        cost_s = max(cost_us for _, cost_us in answers.values()) / 1e6
        own_s = time.monotonic() - now
        least_s = max(
            _LEAST_INTERVAL_S, cost_s * _READINGS_PER_COST, own_s * _READINGS_PER_OWN_COST
        )
        if self._history is before:
            least_s = max(least_s, min(2 * self._interval_s, _LONGEST_INTERVAL_S))
        self._interval_s = least_s
        answers.clear()
        self._asked_at, self._ask_at = None, now + self._next_reading_s()
        self._compare(now)

    def _next_reading_s(self) -> float:
        missing_us = None if self._is_early else self._history.missing_us()
        if self._is_early:
            # What the early reading has cost is made up for.
            self._is_early = False
            return 2 * self._interval_s
        if missing_us is None or missing_us / 1e6 >= self._interval_s:
            return self._interval_s
        self._is_early = True
        return max(missing_us / 1e6, _LEAST_INTERVAL_S)

    def _compare(self, now: float) -> None:
        found = self._group(self._history.slow)
        for node in self.slow.keys() - found.keys():
            self._clear(node)
        for node, slow in found.items():
            if node in self.slow:
                known, named_at = self.slow[node]
                slow = replace(slow, reasons=known.reasons, since=known.since)
                self.slow[node] = slow, named_at
        new = {node: slow for node, slow in found.items() if node not in self.slow}
        if new.keys() - self._suspects.keys():
            self._ask_for_load(new.values())
            self._explain_at = now + timeouts.LOAD_S
        self._suspects = new

    def _group(self, slow: Mapping[int, SlowRank]) -> dict[str, SlowNode]:
        ranks_of: dict[str, list[int]] = {}
        workers = {worker.rank: worker for worker in self._workers}
        for worker in workers.values():
            ranks_of.setdefault(worker.hostname, []).append(worker.rank)
        found = {}
        for node, ranks in ranks_of.items():
            if named := [slow[rank] for rank in sorted(ranks) if rank in slow]:
                found[node] = SlowNode(
                    node=node,
                    node_rank=workers[named[0].rank].node_rank,
                    ranks=tuple(each.rank for each in named),
                    factor=max(each.factor for each in named),
                    since=min(each.since for each in named),
                    until=self._history.last_step,
                )
        return found

    def _ask_for_load(self, nodes: Iterable[SlowNode]) -> None:
        self._progress.loads.clear()
        # One of each node, and the one that waits longest, for comparison.
        skews = self._history.skews()
        self._fastest = min(range(len(skews)), key=skews.__getitem__)
        self._broadcast("load", ranks=[self._fastest, *(slow.ranks[0] for slow in nodes)])

    def _explain(self, now: float) -> None:
        """Name the nodes once it is known what they suffer from, or that takes too long."""
        loads = self._progress.loads
        wanted = [self._fastest, *(slow.ranks[0] for slow in self._suspects.values())]
        if now < self._explain_at and not all(rank in loads for rank in wanted):
            return
        other = loads.get(self._fastest)
        for slow in self._suspects.values():
            load = loads.get(slow.ranks[0])
            reasons = () if load is None else explain_load(load, other)
            self._name(replace(slow, reasons=reasons), now)
        self._suspects = {}

    def _name(self, slow: SlowNode, now: float) -> None:
        self.slow[slow.node] = slow, now
        self._note(
            "node-slow",
            node=slow.node,
            ranks=list(slow.ranks),
            factor=round(slow.factor, 2),
            since_step=slow.since,
            step=slow.until,
            reason="; ".join(slow.reasons),
            attempt=self._attempt,
        )
        log(f"{slow}. {self._advice(slow)}")

    def _clear(self, node: str) -> None:
        slow, _ = self.slow.pop(node)
        step = self._history.last_step
        self._note(
            "node-slow-over", node=node, ranks=list(slow.ranks), step=step, attempt=self._attempt
        )
        log(f"{node} no longer makes steps longer, as of step {step} of the attempt.")
