"""The flight recorder of torch: which collectives this rank has called, and which have not ended.

Gloo keeps it as NCCL does where ``TORCH_FR_BUFFER_SIZE`` is set before the process group is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hpctrain.worker.group_record import Call, GroupRecord

BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE"
DEFAULT_BUFFER_SIZE = "500"
"""Calls that are kept: more than DDP has buckets in flight."""
# Of Gloo and others; of NCCL, in a build for GPUs.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def read_groups(has_failed: bool = False) -> list[GroupRecord]:
    """Return what is recorded of the process groups of this rank. Not collective.

    It reads neither the GPU nor what other ranks have, and may be called in any thread.

    Parameters
    ----------
    has_failed
        Whether the newest call has failed: torch then calls it retired, as one that has ended.
    """
    from torch._C import _distributed_c10d

    entries = []
    for name in _DUMPS:
        # Older versions of torch have neither.
        if dump := getattr(_distributed_c10d, name, None):
            entries += json.loads(dump()).get("entries", [])
    if has_failed and entries:
        newest = max(entries, key=lambda entry: int(entry["time_created_ns"]))
        newest |= {"retired": False, "state": "failed"}
    return summarize(entries, _members())


def summarize(
    entries: Iterable[Mapping[str, Any]], members: Mapping[str, tuple[int, ...]]
) -> list[GroupRecord]:
    """Return the record of each process group. Not collective.

    Parameters
    ----------
    entries
        Calls as torch records them, oldest first.
    members
        World ranks of each group, by its name.
    """
    calls: dict[tuple[str, str], int] = {}
    pending: dict[tuple[str, str], Call] = {}
    for entry in entries:
        name, description = map(str, entry["process_group"])
        group = name, "" if description == "undefined" else description
        is_p2p = bool(entry["is_p2p"])
        number = int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"])
        calls[group] = max(calls.get(group, 0), 0 if is_p2p else number)
        if entry["retired"] or entry["state"] == "completed":
            continue
        known = pending.get(group)
        if known is None or (known.is_p2p, known.number) > (is_p2p, number):
            pending[group] = Call(
                # "gloo:all_reduce", "nccl:recv 0<-1".
                op=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
                number=number,
                shapes=tuple(tuple(map(int, shape)) for shape in entry["input_sizes"]),
                dtypes=tuple(str(dtype).lower() for dtype in entry["input_dtypes"]),
                is_p2p=is_p2p,
            )
    return [
        GroupRecord(
            name=group[0],
            description=group[1],
            ranks=members.get(group[0], ()),
            calls=number,
            pending=pending.get(group),
        )
        for group, number in calls.items()
    ]


def _members() -> dict[str, tuple[int, ...]]:
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    return {
        name: tuple(sorted(world.pg_group_ranks.get(group, ())))
        for group, name in list(world.pg_names.items())
    }
