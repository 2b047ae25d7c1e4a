"""``live.json``: how far each rank is, and what the nodes do. For those who look at a run.

No process of a run reads it, and a run that cannot write it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpctrain.errors import DamagedFileError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_time, read_object

FORMAT = 1
"""Raised when a field changes its meaning; a reader leaves out what is newer."""
INTERVAL_S = 5.0
"""Seconds between two writes, at least."""
_MOST_RANKS = 2**20
_MOST_GPUS = 64


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """What the ranks use of a node. None is not known."""

    cpus: int | None = None
    """Cores that they may run on."""
    cpu: float | None = None
    """How many of them were busy, over some seconds."""
    memory: int | None = None
    """MiB in use."""
    memory_limit: int | None = None
    """MiB that they may use."""
    gpus: tuple[tuple[int | None, int | None, int | None], ...] = ()
    """Percent busy, MiB in use and MiB there are, of each GPU."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """How far each rank of an attempt is: one value a rank, by its number."""

    attempt: int
    written_at: float
    """Seconds since the epoch, on the clock of the executor."""
    phases: tuple[str, ...]
    reports: tuple[int, ...]
    """Number of its last report."""
    idle_s: tuple[int, ...]
    """Seconds since its last progress, as of `written_at`."""
    node_ranks: tuple[int, ...]
    """Its node, as an index of `nodes`; empty if that is not known."""
    nodes: tuple[str, ...]
    """Host names, by node rank."""
    uses: tuple[NodeUse, ...]
    """Of each node."""

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.phases)

    def node_of(self, rank: int) -> str:
        """Return the host name of a rank; empty if that is not known. Not collective."""
        return self.nodes[self.node_ranks[rank]] if self.node_ranks else ""


def encode_live(live: Live) -> bytes:
    """Return the content of ``live.json``. Not collective.

    Of ranks, equal values one after the other are one entry: ``[["training", 998], ["done", 2]]``.
    """
    content = {
        "format": FORMAT,
        "attempt": live.attempt,
        "written_at": live.written_at,
        "phases": _encode_runs(live.phases),
        "reports": _encode_runs(live.reports),
        "idle_s": _encode_runs(live.idle_s),
        "node_ranks": _encode_runs(live.node_ranks),
        "nodes": live.nodes,
        **{name: [getattr(use, name) for use in live.uses] for name in _OF_NODES},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def read_live(paths: RunPaths) -> Live | None:
    """Return how far each rank is; None where that is not known. Not collective.

    It is not where the file is missing, damaged, of a newer format, or cannot be read.
    """
    try:
        return decode_live(read_object(paths.live))
    except (OSError, DamagedFileError):
        return None


def decode_live(content: Mapping[str, Any]) -> Live | None:
    """Return what `read_live` does, of a JSON object. Pure."""
    attempt, written_at = content.get("attempt"), content.get("written_at")
    if content.get("format") != FORMAT or type(attempt) is not int or not is_time(written_at):
        return None
    phases = _decode_runs(content.get("phases"), str)
    reports = _decode_runs(content.get("reports"), int)
    idle_s = _decode_runs(content.get("idle_s"), int)
    node_ranks = _decode_runs(content.get("node_ranks"), int)
    nodes = content.get("nodes")
    if phases is None or reports is None or idle_s is None or node_ranks is None:
        return None
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        return None
    if len({len(phases), len(reports), len(idle_s)}) > 1:
        return None
    if node_ranks and (len(node_ranks) != len(phases) or max(node_ranks) >= len(nodes)):
        return None
    return Live(
        attempt=attempt,
        written_at=float(written_at or 0.0),
        phases=phases,
        reports=reports,
        idle_s=idle_s,
        node_ranks=node_ranks,
        nodes=tuple(nodes),
        uses=_decode_uses(content, len(nodes)),
    )


def make_use(measured: Mapping[str, Any]) -> NodeUse:
    """Return what a node has measured, without what is not as it has to be. Not collective."""
    known: dict[str, Any] = {}
    for name in ("cpus", "memory", "memory_limit"):
        if _is_count(measured.get(name)):
            known[name] = measured[name]
    cpu = measured.get("cpu")
    if isinstance(cpu, (int, float)) and not isinstance(cpu, bool) and 0 <= cpu < 1e6:
        known["cpu"] = float(cpu)
    gpus = measured.get("gpus")
    if isinstance(gpus, list) and len(gpus) <= _MOST_GPUS and all(map(_is_gpu, gpus)):
        known["gpus"] = tuple(tuple(gpu) for gpu in gpus)
    return NodeUse(**known)


_OF_NODES = ("cpus", "cpu", "memory", "memory_limit", "gpus")


def _is_gpu(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(number is None or _is_count(number) for number in value)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _encode_runs(values: Iterable[Any]) -> list[tuple[Any, int]]:
    return [(value, len(list(group))) for value, group in groupby(values)]


def _decode_runs(runs: Any, kind: type) -> tuple[Any, ...] | None:
    if not isinstance(runs, list):
        return None
    values: list[Any] = []
    for run in runs:
        if not isinstance(run, list) or len(run) != 2:
            return None
        value, count = run
        if type(value) is not kind or (kind is int and not _is_count(value)):
            return None
        # Of a damaged file: a count is no reason to fill the memory.
        if not _is_count(count) or len(values) + count > _MOST_RANKS:
            return None
        values += [value] * count
    return tuple(values)


def _decode_uses(content: Mapping[str, Any], num_nodes: int) -> tuple[NodeUse, ...]:
    columns: dict[str, Sequence[Any]] = {}
    for name in _OF_NODES:
        column = content.get(name)
        if isinstance(column, list) and len(column) == num_nodes:
            columns[name] = column
    return tuple(
        make_use({name: column[node] for name, column in columns.items()})
        for node in range(num_nodes)
    )
