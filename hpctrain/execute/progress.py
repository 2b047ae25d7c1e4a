"""`Progress`: how far each rank is, and since when. Pure: the clock is the caller's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpctrain.control.wire import Frame
from hpctrain.own_time import OwnTime
from hpctrain.worker.group_record import GroupRecord

if TYPE_CHECKING:
    from hpctrain.worker.load import Load

_UNTIL_TRAINING = ("mpi", "importing", "preprocessing", "backend")
_RETURNED = ("shutdown", "done")
PHASES = (*_UNTIL_TRAINING, "training", "checkpoint", *_RETURNED)


class Progress:
    """How far each rank is, and since when.

    Parameters
    ----------
    world_size, first_report
        As in `AttemptTracker`.
    now
        Seconds of a clock that never goes back.
    """

    def __init__(self, *, world_size: int, first_report: int, now: float) -> None:
        self._phases = ["mpi"] * world_size
        self._reports = [first_report] * world_size
        # Time in which no frames were read, because a checkpoint was written or the executor itself
        # stood still, is not held against the ranks.
        self._time = OwnTime(now)
        self._since = [self._time.now] * world_size
        self.stacks: dict[int, str] = {}
        """Where ranks are, as they have answered since `ask`."""
        self.collectives: dict[int, list[GroupRecord]] = {}
        """What they have recorded of their collectives."""
        self._owing: set[int] = set()
        self.seen: dict[int, str] = {}
        """What their agents saw from outside."""
        self.reasons: dict[int, str] = {}
        """Why ranks do not answer, as their agents see it."""
        self.step_times: dict[int, tuple[bytes, int]] = {}
        """How long steps of ranks take, encoded, and the microseconds that reading it costs."""
        self.loads: dict[int, Load] = {}
        """What holds ranks up."""

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._phases)

    def listen(self, now: float) -> None:
        """Note that frames are read now. To be called often, whether there are frames or not."""
        self._time.look(now)

    @property
    def now(self) -> float:
        """Seconds for which the executor has listened, as `since` counts them."""
        return self._time.now

    def feed(self, frame: Frame) -> None:
        """Record a frame of a rank."""
        rank = int(frame.header.get("rank", -1))
        if not 0 <= rank < len(self):
            return
        op = frame.op
        if op == "stacks":
            self.stacks[rank] = frame.body.decode(errors="replace")
            if frame.header.get("record_follows"):
                self._owing.add(rank)
        elif op == "collectives":
            self._owing.discard(rank)
            self.collectives[rank] = [GroupRecord.from_json(g) for g in json.loads(frame.body)]
        elif op == "examined":
            self.seen[rank] = frame.body.decode(errors="replace")
            self.reasons[rank] = frame.header["reason"]
        elif op == "step-times":
            self.step_times[rank] = frame.body, frame.header["cost_us"]
        elif op == "load":
            from hpctrain.worker.load import Load

            self.loads[rank] = Load.from_json(json.loads(frame.body))
        elif op in ("report", "part", "phase", "done", "heartbeat"):
            self._since[rank] = self.now
            if op == "report":
                self._reports[rank] += 1
            elif op == "phase":
                self._phases[rank] = frame.header["phase"]
            elif op == "done":
                self._phases[rank] = "done"

    def ask(self) -> None:
        """Forget the answers about where ranks are."""
        self.stacks, self.seen, self.reasons = {}, {}, {}
        self.collectives, self._owing = {}, set()

    def has_answered(self, rank: int) -> bool:
        """Return whether a rank has said all that it will since `ask`."""
        return rank in self.stacks and rank not in self._owing

    def phase(self, rank: int) -> str:
        """Return the phase of a rank."""
        return self._phases[rank]

    def reports(self, rank: int) -> int:
        """Return the number of a rank's last report."""
        return self._reports[rank]

    def since(self, rank: int) -> float:
        """Return when a rank last made progress, on the clock of `now`."""
        return self._since[rank]

    def unfinished(self) -> list[int]:
        """Return the ranks that have not returned."""
        return [rank for rank, phase in enumerate(self._phases) if phase != "done"]

    def stalled(self, *, training_s: float, others_s: float) -> list[int]:
        """Return the ranks without progress for so long.

        Parameters
        ----------
        training_s
            Seconds allowed in the training function.
        others_s
            Seconds allowed in each phase before and after it.
        """
        if self.now - min(self._since) <= min(training_s, others_s):
            return []
        in_training = ("training", "checkpoint")
        return [
            rank
            for rank in self.unfinished()
            if self.now - self._since[rank]
            > (training_s if self._phases[rank] in in_training else others_s)
        ]

    def returned(self) -> list[int]:
        """Return the ranks whose training function has returned."""
        return [rank for rank, phase in enumerate(self._phases) if phase in _RETURNED]

    def left_behind(self, after_s: float) -> list[int]:
        """Return the ranks in training, without progress for so long after another has returned."""
        returned = self.returned()
        if not returned:
            return []
        first = min(self._since[rank] for rank in returned)
        return [
            rank
            for rank, phase in enumerate(self._phases)
            if phase == "training" and self.now - max(first, self._since[rank]) > after_s
        ]

    def furthest_behind(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that have come least far, which can be all."""
        ranks = list(ranks)
        least = min(map(self._position, ranks))
        return [rank for rank in ranks if self._position(rank) == least]

    def describe(self, rank: int) -> str:
        """Return how far a rank is, in words."""
        phase = self._phases[rank]
        if phase == "done":
            return f"returned after report {self._reports[rank]}"
        if phase in _UNTIL_TRAINING:
            return f"in phase {phase}"
        return f"in phase {phase}, after report {self._reports[rank]}"

    def _position(self, rank: int) -> tuple[int, int]:
        phase = self._phases[rank]
        # A rank that saves a checkpoint has not made that report yet.
        return PHASES.index("training" if phase == "checkpoint" else phase), self._reports[rank]
