"""`AttemptTracker`: what the ranks of one attempt have sent so far. Pure: no I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.execute.progress import PHASES
from hpctrain.rundir.staging import StagedPart
from hpctrain.worker.failure import RankFailure


@dataclass(frozen=True, kw_only=True)
class ReportRound:
    """A report that every rank has made, and whose checkpoint, if any, is staged."""

    report: int
    """Number of the report, counted over all attempts."""
    lines: Mapping[int, bytes]
    """What each rank reported, as JSON, by world rank."""
    parts: Mapping[int, StagedPart]
    """What ranks staged for a checkpoint, by world rank; empty without a checkpoint."""

    @property
    def lacks(self) -> str | None:
        """What the names begin with that rank 0 may report later; None if it has measured all."""
        partial: str | bool | None = json.loads(self.lines[0]).get("partial")
        return partial if isinstance(partial, str) else ("" if partial else None)

    @cached_property
    def validations(self) -> Mapping[int, Mapping[str, Any]]:
        """How ranks want its checkpoint validated, as of `Manifest`, by world rank, in order."""
        asked = {}
        for rank in sorted(self.lines):
            part = self.parts.get(rank)
            if part is not None:
                validation = part.validation
            elif b'"validation":' in self.lines[rank]:
                validation = json.loads(self.lines[rank]).get("validation")
            else:
                validation = None
            if validation is not None:
                asked[rank] = validation
        return asked

    @property
    def validation(self) -> Mapping[str, Any] | None:
        """How its checkpoint is validated: as the lowest rank that asks wants; None: not at all."""
        return next(iter(self.validations.values()), None)

    @property
    def is_validated(self) -> bool:
        """Whether a validation of its checkpoint is asked for, which gives more metrics."""
        return bool(self.parts) and bool(self.validations)

    def metrics(self, rank: int = 0) -> dict[str, Any]:
        """Return the metrics of a rank."""
        metrics: dict[str, Any] = json.loads(self.lines[rank])["metrics"]
        return metrics


@dataclass(frozen=True, kw_only=True)
class MissingParts:
    """What a checkpoint lacks before it can be committed."""

    report: int
    absent: Sequence[int]
    """Ranks that have not made its report."""
    writing: Sequence[int]
    """Ranks that have, and have not written their parts."""


class AttemptTracker:
    """What the ranks of one attempt have sent so far.

    Parameters
    ----------
    world_size
        Number of ranks.
    first_report
        Number of the report that the attempt resumed from.
    """

    def __init__(self, *, world_size: int, first_report: int) -> None:
        self._world_size = world_size
        self._first = first_report
        self._counts = dict.fromkeys(range(world_size), first_report)
        self._made = first_report
        self._rounds = first_report
        self._lines: dict[int, dict[int, bytes]] = {}
        self._parts: dict[int, dict[int, StagedPart | None]] = {}
        self._phases = dict.fromkeys(range(world_size), "mpi")
        # Of all ranks; None after a change, until it is asked for.
        self._phase: str | None = "mpi"
        self._done: set[int] = set()
        # Reports and collectives of each; in which one ranks wait, or 0: see `Session.collective`.
        self._returned: dict[int, tuple[int, int]] = {}
        self._waits: dict[int, tuple[int, str]] = {}
        self._frozen: dict[int, int] = {}
        self._return_value = b""
        self.failures: dict[int, RankFailure] = {}
        """Why ranks failed, in the order in which it became known."""
        self.lost: dict[int, bool] = {}
        """Ranks whose connection ended, in that order; the value is whether their agent's did."""
        self.cut_off: dict[int, int] = {}
        """Ranks whose connection ended with another rank, through which they had it: that one."""
        self.memory: dict[int, Mapping[str, Any]] = {}
        """What is known of the memory of ranks that are lost: see `MemoryWatch.remove`."""
        self.signals: list[str] = []
        """Signals that ranks have passed on."""
        self.asked: set[int] = set()
        """Reports whose checkpoints ranks ask for; `RankRequests` answers, and removes them."""
        self.slots: list[tuple[int, int, bool]] = []
        """Ranks, the numbers of their write slots, and whether these are wanted, or over;
        `RankRequests` answers, and removes them."""
        self.awaited = 0
        """Number of the last report after which ranks wait for a tuner; 0 if they never do."""
        self.was_notified = False
        """Whether a rank that returned knew that it should."""

    @property
    def reports(self) -> int:
        """Number of the last report that all ranks have made."""
        return self._made

    @property
    def phase(self) -> str:
        """The earliest phase that any rank is in."""
        if self._phase is None:
            self._phase = min(self._phases.values(), key=PHASES.index)
        return self._phase

    @property
    def is_done(self) -> bool:
        """Whether the training function has returned on every rank."""
        return len(self._done) == self._world_size

    @property
    def has_failed(self) -> bool:
        """Whether a rank is known to have failed."""
        return bool(self.failures or self.lost)

    @property
    def num_ended(self) -> int:
        """Number of ranks that have returned, failed or died."""
        ended = self._done | self.failures.keys() | self.lost.keys()
        # Those say no more.
        return len(ended | self.cut_off.keys())

    @property
    def return_value(self) -> bytes:
        """What rank 0's training function returned, pickled; empty for None."""
        return self._return_value

    @property
    def stop_report(self) -> int | None:
        """After the answers to ``freeze``: the first report that no rank has begun, else None."""
        if any(rank not in self._frozen and rank not in self._returned for rank in self._counts):
            return None
        # One more than any rank has begun: a rank that has, may have asked should_stop() already.
        returned = (reports for reports, _ in self._returned.values())
        return max([*self._frozen.values(), *returned]) + 1

    def forget_answers(self) -> None:
        """Forget the answers to ``freeze``: it is asked again."""
        self._frozen.clear()

    def feed(self, frame: Frame) -> list[ReportRound]:
        """Take a frame in; return the reports that it completed, in order."""
        rank, op = int(frame.header.get("rank", -1)), frame.op
        if op == "report":
            return self._note_report(rank, frame)
        if op == "part":
            return self._note_part(rank, frame)
        if op == "checkpoints":
            self.asked.add(frame.header["report"])
            return []
        if op == "slot":
            self.slots.append((rank, frame.header["number"], frame.header["wanted"]))
        elif op == "phase":
            self._phases[rank], self._phase = frame.header["phase"], None
        elif op == "done":
            self._phases[rank], self._phase = "done", None
            self._done.add(rank)
            self.was_notified |= bool(frame.header.get("notified"))
            if rank == 0:
                self._return_value = frame.body
        elif op == "failed":
            self.failures.setdefault(rank, RankFailure.from_json(json.loads(frame.body)))
        elif op == "lost" and rank not in self._done:
            self.lost.setdefault(rank, bool(frame.header.get("agent")))
            if memory := frame.header.get("memory"):
                self.memory[rank] = memory
        elif op == "cut-off" and rank not in self._done:
            self.cut_off.setdefault(rank, frame.header["relay"])
        elif op == "returned":
            self._returned[rank] = frame.header["reports"], frame.header["collectives"]
        elif op == "waits":
            self._waits[rank] = frame.header["collective"], frame.header["stage"]
        elif op == "awaits":
            self.awaited = max(self.awaited, frame.header["report"])
        elif op == "frozen":
            self._frozen[rank] = frame.header["report"]
        elif op == "signal":
            self.signals.append(frame.header["name"])
        return []

    def missing_parts(self, rank: int) -> MissingParts | None:
        """Return what the oldest checkpoint lacks of which a rank has written its part."""
        for report, parts in sorted(self._parts.items()):
            if parts.get(rank) is not None:
                lines = self._lines[report]
                absent = [other for other in range(self._world_size) if other not in lines]
                writing = [other for other, part in sorted(parts.items()) if part is None]
                return MissingParts(report=report, absent=absent, writing=writing)
        return None

    def unmatched_calls(self) -> str | None:
        """Return the error if a rank has returned, and others wait for it or reported more."""
        if not self._returned:
            return None
        return self._unmatched_wait() or self._uneven_reports()

    def _unmatched_wait(self) -> str | None:
        gone = min(self._returned, key=lambda rank: self._returned[rank][1])
        for rank, (collective, stage) in self._waits.items():
            # A rank that has returned may wait for all of them in the end of its backend. The
            # number shows whether a wait cannot end, or its end was not received yet.
            if rank not in self._returned and collective > self._returned[gone][1]:
                return (
                    f"rank {gone} returned, but rank {rank} waits for all ranks in {stage}. Every "
                    f"rank must make the same calls in the same order: move it out of conditions "
                    f"such as 'if rank == 0'."
                )
        return None

    def _uneven_reports(self) -> str | None:
        least_rank = min(self._returned, key=lambda rank: self._returned[rank][0])
        least = self._returned[least_rank][0]
        most_rank = max(self._counts, key=self._counts.__getitem__)
        most = self._counts[most_rank]
        # With neither a checkpoint nor a tuner no rank waits, so uneven counts only matter once all
        # have left.
        waits = self.awaited > least or any(report > least for report in self._parts)
        if most == least or not (waits or self.is_done):
            return None
        return (
            f"rank {least_rank} returned after {least - self._first} reports, but rank {most_rank} "
            f"made {most - self._first}. Every rank must call report() equally often, with or "
            f"without a checkpoint: move it out of conditions such as 'if rank == 0'."
        )

    def _note_report(self, rank: int, frame: Frame) -> list[ReportRound]:
        self._counts[rank] += 1
        number = self._counts[rank]
        self._lines.setdefault(number, {})[rank] = frame.body
        if frame.header.get("part_follows"):
            self._parts.setdefault(number, {})[rank] = None
        while len(self._lines.get(self._made + 1, ())) == self._world_size:
            self._made += 1
        return self._whole_rounds()

    def _note_part(self, rank: int, frame: Frame) -> list[ReportRound]:
        number, made = frame.header["report"], self._counts[rank]
        parts = self._parts.get(number, {})
        if rank not in parts:
            self.failures.setdefault(rank, self._describe_part(rank, number, made))
            return []
        parts[rank] = StagedPart.from_bytes(frame.body)
        return self._whole_rounds()

    def _describe_part(self, rank: int, number: int, made: int) -> RankFailure:
        """Return why a rank fails that gives its part of a checkpoint without the report."""
        return RankFailure(
            rank=rank,
            hostname="",
            pid=-1,
            report=made,
            phase=self._phases[rank],
            type="",
            message=f"it gave its part of the checkpoint of report {number}, and had sent {made} "
            f"reports: an interrupted report() was caught. Let its error leave the training "
            f"function.",
            traceback="",
            time=0.0,
        )

    def _whole_rounds(self) -> list[ReportRound]:
        """Return the next rounds, in order: none overtakes one whose checkpoint is not staged."""
        rounds = []
        while self._rounds < self._made:
            parts = self._parts.get(self._rounds + 1, {})
            staged = {rank: part for rank, part in parts.items() if part is not None}
            if len(staged) < len(parts):
                break
            self._rounds += 1
            self._parts.pop(self._rounds, None)
            lines = self._lines.pop(self._rounds)
            rounds.append(ReportRound(report=self._rounds, lines=lines, parts=staged))
        return rounds
