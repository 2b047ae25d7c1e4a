"""`Point` and `Fault`: where something happens to a run, and what. Pure values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Moment = Literal["before", "after"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place in the life of a run that one process comes by."""

    role: str
    """The process: ``rank-0``, ``executor``, ``supervisor``, ``agent``, ``driver``; of a trial of a
    sweep ``trial_00003/rank-0``, ``trial_00003/executor``, and ``driver`` is the tuner."""
    op: str
    """``start``, ``report``, or what is done to a file: open, write, fsync, rename, link, unlink,
    mkdir."""
    path: str
    """The file, below the storage; for reports ``report-NUMBER``; for starts ``process`` (the
    interpreter runs) or ``world`` (MPI is initialised)."""
    moment: Moment

    @property
    def trial(self) -> str:
        """Name of the trial of a sweep that the process is of; empty if it is of none."""
        return self.role.rpartition("/")[0]

    def __str__(self) -> str:
        """Return it in words."""
        what = self.path if self.op == "report" else f"{self.op} {self.path}"
        return f"{self.role} {self.moment} {what}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a trial's trace: a process passed by a point."""

    time: float
    """Seconds since the epoch."""
    point: Point
    pid: int = 0
    """Of the process, in its own namespace."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens once, the first time that a process comes by a point."""

    kind: str
    """Its name in `hpctrain.testing.chaos.kinds`."""
    point: Point
    act: str
    """What the process does to itself (kill, stop, torn, error), or ``announce``: the harness acts
    as the kind says."""
    errno: int = 0
    """Of act ``error``."""
    amount: float = 0.5
    """How much is left of a torn file; where in a damaged one."""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.kind}: {self.point}"

    def to_json(self, number: int) -> dict[str, Any]:
        """Return what the injector reads."""
        return {"id": str(number), **asdict(self.point), **asdict(self)}


def read_trace(path: Path) -> list[Entry]:
    """Return what the processes of a trial have done, in order. Not collective."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        time, role, op, where, moment, pid = json.loads(line)
        point = Point(role=role, op=op, path=where, moment=moment)
        entries.append(Entry(time=time, point=point, pid=pid))
    return entries
