"""What executors, and the tuner, send to the step of a slot, and how executors prove themselves."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from hpctrain.control.proof import Credentials
from hpctrain.control.wire import encode_frame

if TYPE_CHECKING:
    from hpctrain.plan.resources import Placement

SECRET_BYTES = 32
_NUM_RANKS = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")
# By these a process would be the only task of the step.
_OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS")


def credentials(secret: bytes) -> Credentials:
    """Return the credentials of a connection to the step of a slot. Not collective."""
    return Credentials(secret, run="slot", attempt=0)


def digest_variables(variables: Mapping[str, str]) -> dict[str, int]:
    """Return what shows whether a variable has the same value elsewhere. Pure."""
    return {name: zlib.crc32(os.fsencode(value)) for name, value in variables.items()}


def variables_of_ranks(placement: Placement, node: int) -> tuple[dict[str, str], list[str]]:
    """Return the variables by which ranks see one step, and those of the step that they lack. Pure.

    A step of a slot has one task, on one node. The launcher's own variables say which rank a
    process is.

    Parameters
    ----------
    placement
        How all ranks lie on nodes, which are named.
    node
        Number of their node.

    Examples
    --------
    >>> from hpctrain.plan.resources import Placement
    >>> placement = Placement(
    ...     tasks_per_node=(2, 2, 1),
    ...     nodes=("a", "b", "c"),
    ...     cpus_per_task=4,
    ...     gpus_per_task=0,
    ...     mem_bytes_per_task=None,
    ... )
    >>> variables, lacked = variables_of_ranks(placement, 1)
    >>> variables["SLURM_NODEID"], variables["SLURM_STEP_TASKS_PER_NODE"]
    ('1', '2(x2),1')
    """
    each = _shorten(placement.tasks_per_node)
    variables = {
        **dict.fromkeys(_NUM_RANKS, str(placement.num_workers)),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), each),
        "SLURM_CPUS_PER_TASK": str(placement.cpus_per_task),
    }
    if placement.num_nodes > 1:
        count = str(placement.num_nodes)
        variables.update(dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), count))
        variables["SLURM_STEP_NODELIST"] = ",".join(placement.nodes)
        variables["SLURM_NODEID"] = str(node)
    return variables, [*_OF_TASK] if placement.num_workers > 1 else []


def _shorten(counts: Iterable[int]) -> str:
    """Return numbers as Slurm writes those of tasks."""
    parts = ((count, len([*same])) for count, same in groupby(counts))
    return ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in parts)


def encode_request(
    argv: list[str],
    *,
    command: list[str],
    environment: Mapping[str, str],
    of_rank: Mapping[str, str],
    without: list[str],
    cwd: str,
    agent: bool,
    modules: list[str],
    dispensable: list[str],
    own_places: list[str],
) -> bytes:
    """Return the frame that asks for a process in the step of a slot. Pure; not collective.

    Parameters
    ----------
    argv
        The launcher of ranks, or what it has on this node; empty for an agent.
    command
        Of a rank, or of the agent.
    environment
        Of the executor, for them. What the step has itself counts more.
    of_rank, without
        Variables of the step that are others for them, and those that they do not have.
    cwd
        Working directory.
    agent
        Whether it is an agent.
    modules, dispensable, own_places
        What ranks import, those of it that are left out where they keep ranks from being forked,
        and directories of the user's modules.
    """
    body = {
        "argv": argv,
        "command": command,
        "environment": {**environment},
        "cwd": cwd,
        "of_rank": {**of_rank},
        "without": without,
        "agent": agent,
        "modules": modules,
        "dispensable": dispensable,
        "own_places": own_places,
    }
    return encode_frame({"op": "start"}, json.dumps(body).encode())
