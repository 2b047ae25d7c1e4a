"""The GPUs of a rank among the visible ones. Every rank imports it, so it imports little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.errors import ConfigError


def assign_gpus(
    visible: tuple[str, ...], *, local_rank: int, local_world_size: int, gpus_per_worker: int
) -> tuple[str, ...]:
    """Return which of the visible GPUs belong to a worker.

    Not collective. If a task sees the GPUs of its whole node (``--gpus-per-node``), workers get
    them in blocks by local rank; if it sees only its own (``--gpus-per-task``), all of them.

    Parameters
    ----------
    visible
        As ``CUDA_VISIBLE_DEVICES`` would name them.

    Raises
    ------
    ConfigError
        If the visible GPUs are neither the worker's own nor enough for the node.

    Examples
    --------
    >>> assign_gpus(("0", "1", "2", "3"), local_rank=1, local_world_size=2, gpus_per_worker=2)
    ('2', '3')
    """
    if gpus_per_worker == 0:
        return ()
    if len(visible) >= gpus_per_worker * local_world_size:
        first = local_rank * gpus_per_worker
        return visible[first : first + gpus_per_worker]
    if len(visible) == gpus_per_worker:
        return visible
    if not visible:
        raise ConfigError(
            f"use_gpu=True gives each worker {gpus_per_worker} GPU{'s' * (gpus_per_worker > 1)}, "
            f"but no GPU is visible to a worker here, and none is named by CUDA_VISIBLE_DEVICES, "
            f"HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES. If the nodes have GPUs (sinfo "
            f"--format='%N %G' lists their GRES), request them: SlurmConfig(gpu_request="
            f"'gpus-per-node'), or 'gres' where the site has no other. If they have none, choose a "
            f"partition that does: SlurmConfig(partition=...), or set use_gpu=False."
        )
    raise ConfigError(
        f"{local_world_size} workers on this node with {gpus_per_worker} GPUs each, but a worker "
        f"sees {len(visible)} ({','.join(visible)}). Request the GPUs of the whole node "
        f"(SlurmConfig(gpu_request='gpus-per-node')), or fewer per worker."
    )


@dataclass(frozen=True, kw_only=True)
class SeenGpus:
    """The GPUs that one rank sees."""

    hostname: str
    node_rank: int
    mask: str | None
    """The variable that hides others, such as ``CUDA_VISIBLE_DEVICES=0,1``; None without one."""
    visible: tuple[str, ...]
    """As ``CUDA_VISIBLE_DEVICES`` would name them; without a variable, all GPUs of the machine."""
    devices: tuple[str, ...]
    """Device files of GPUs that the rank may open."""


def check_gpus_of_ranks(ranks: Sequence[SeenGpus], gpus_per_worker: int) -> None:
    """Refuse ranks if several on one node would compute on the same GPU.

    Not collective.

    Parameters
    ----------
    ranks
        The GPUs that each rank sees, by rank.

    Raises
    ------
    ConfigError
        If ranks of a node see the same GPUs, and too few for all of them.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, seen in enumerate(ranks):
        # With ConstrainDevices=yes, Slurm numbers the GPUs of each task from 0: only the device
        # files that a task may open distinguish them.
        alike[seen.node_rank, seen.mask, seen.visible, seen.devices].append(rank)
    for numbers in alike.values():
        seen, needed = ranks[numbers[0]], len(numbers) * gpus_per_worker
        if len(seen.visible) >= needed:
            continue
        mask = "" if seen.mask is None else f" ({seen.mask})"
        who = f"rank {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} ranks"
        need, see = ("needs", "sees") if len(numbers) == 1 else ("need", "see")
        fits = len(seen.visible) // gpus_per_worker
        way_out = f"Start {fits} of them there" if fits else "Set use_gpu=False"
        raise ConfigError(
            f"num_workers={len(ranks)} with use_gpu=True: {who} on {seen.hostname} {need} "
            f"{needed} GPU{'s' * (needed > 1)}, and {see} {len(seen.visible)}{mask}. {way_out}, or "
            f"give each rank its own: srun --gpus-per-task={gpus_per_worker}."
        )
