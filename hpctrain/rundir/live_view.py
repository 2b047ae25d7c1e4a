"""`LiveView`: a run at one moment, for those who look at it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.rundir.live import Live, NodeUse
from hpctrain.rundir.speed import Goal, Report, Speed
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

_MOST_SLOWEST = 8
_RETURNED = ("shutdown", "done")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The checkpoints of a run."""

    count: int = 0
    newest: str | None = None
    """Its name."""
    size: int | None = None
    """Bytes of the newest; None if that is not known."""
    created_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """A run at one moment. Times are seconds since the epoch.

    It is made of what the run directory holds, by `hpctrain.launch.live_watch.LiveWatch`.
    """

    name: str
    path: Path
    state: str
    """A `RunState`; ``lost`` if it has not ended and has no executor; ``prepared`` before that,
    ``unread`` if its directory cannot be read."""
    live: bool | None
    """Whether an executor runs it or will run it; None if that is not known."""
    status: RunStatus
    now: float
    """When it was read."""
    waits: str = ""
    """Why its job waits, as far as Slurm says so."""
    unanswered: str = ""
    """What is not known of its job, and why: Slurm did not answer."""
    reports: int = 0
    """Number of the last report."""
    reported_at: float | None = None
    metrics: Mapping[str, Any]
    """Rank 0's last metrics."""
    history: tuple[Report, ...] = ()
    """Reports, the oldest first; of many only some."""
    speed: Speed = field(default_factory=Speed)
    goals: tuple[Goal, ...] = ()
    """The stop criteria, the one first that is met first."""
    saved: Saved = field(default_factory=Saved)
    ranks: Live | None = None
    """Where the ranks of the present attempt are; None if that is not known."""
    problem: str = ""
    """What cannot be read."""
    summary: str = ""
    """Of a sweep, which is shown among runs: its trials, in words."""

    @property
    def shown_state(self) -> str:
        """The state in one word, for display."""
        return "stopping" if self.live and self.status.phase.startswith("stopping") else self.state

    @property
    def is_over(self) -> bool:
        """Whether no executor runs it or will run it."""
        return self.live is False

    @property
    def is_at_work(self) -> bool:
        """Whether its ranks are there."""
        states = (RunState.STARTING, RunState.RUNNING)
        return self.live is not False and self.status.state in states

    @property
    def left_s(self) -> float | None:
        """Seconds until its time limit; None if it has none, or is over."""
        deadline = self.status.deadline
        return None if deadline is None or not self.is_at_work else max(0.0, deadline - self.now)

    def idle_s(self, rank: int) -> int:
        """Return the seconds since a rank's last progress, as the executor saw it last.

        Not collective. The file of the ranks is not written again as long as none makes progress,
        and the status is; both have the executor's clock.
        """
        assert self.ranks is not None
        since = self.status.updated_at - self.ranks.written_at if self.is_at_work else 0.0
        return self.ranks.idle_s[rank] + max(0, int(since))

    def order(self, *, slowest_first: bool) -> list[int]:
        """Return the ranks: by their numbers, or those first that are behind.

        Not collective. The slowest has made the fewest reports, and has been longest without
        progress; ranks that have returned come last.
        """
        if self.ranks is None:
            return []
        ranks = range(len(self.ranks))
        if not slowest_first:
            return list(ranks)
        phases, reports, idle_s = self.ranks.phases, self.ranks.reports, self.ranks.idle_s
        return sorted(
            ranks, key=lambda rank: (phases[rank] in _RETURNED, reports[rank], -idle_s[rank], rank)
        )

    def phases(self) -> dict[str, int]:
        """Return how many ranks are in each phase, the most first. Not collective."""
        return {} if self.ranks is None else dict(Counter(self.ranks.phases).most_common())

    def node_use(self) -> dict[str, NodeUse]:
        """Return what ranks use of each node of which something is known. Not collective."""
        if self.ranks is None:
            return {}
        pairs = zip(self.ranks.nodes, self.ranks.uses, strict=True)
        return {node: use for node, use in pairs if use != NodeUse()}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that it adds to ``hpctrain status --json``. Not collective."""
        slowest = self.order(slowest_first=True)[:_MOST_SLOWEST] if self.is_at_work else []
        return {
            "reports_per_s": self.speed.reports,
            "samples_per_s": self.speed.samples,
            "samples_unit": None if self.speed.samples is None else self.speed.unit,
            "goals": [
                {"name": g.name, "target": g.target, "value": g.value, "left_s": g.left_s}
                for g in self.goals
            ],
            "num_checkpoints": self.saved.count,
            "checkpoint_bytes": self.saved.size,
            "checkpoint_created_at": self.saved.created_at,
            "rank_phases": self.phases(),
            "slowest_ranks": [self._rank_to_json(rank) for rank in slowest],
            "node_use": [
                {
                    "name": node,
                    "cpus": use.cpus,
                    "cpu": use.cpu,
                    "memory_mib": use.memory,
                    "memory_limit_mib": use.memory_limit,
                    "gpus": [
                        {"busy_percent": busy, "memory_mib": used, "memory_total_mib": total}
                        for busy, used, total in use.gpus
                    ],
                }
                for node, use in self.node_use().items()
            ],
        }

    def _rank_to_json(self, rank: int) -> dict[str, Any]:
        assert self.ranks is not None
        return {
            "rank": rank,
            "node": self.ranks.node_of(rank) or None,
            "phase": self.ranks.phases[rank],
            "reports": self.ranks.reports[rank],
            "idle_s": self.idle_s(rank),
        }
