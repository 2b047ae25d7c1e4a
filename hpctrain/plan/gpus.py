"""Which of the GPUs that a rank sees are its own. Imported by every rank, so it imports little."""

from __future__ import annotations

from hpctrain.errors import ConfigError


def assign_gpus(
    visible: tuple[str, ...], *, local_rank: int, local_world_size: int, gpus_per_worker: int
) -> tuple[str, ...]:
    """Return which of the visible GPUs belong to a worker.

    Not collective. Where a task sees the GPUs of its whole node (``--gpus-per-node``), workers take
    them in blocks by local rank; where it sees only its own (``--gpus-per-task``), all of them.

    Parameters
    ----------
    visible
        Entries of ``CUDA_VISIBLE_DEVICES``.

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
    raise ConfigError(
        f"{local_world_size} workers on this node with {gpus_per_worker} GPUs each, but "
        f"CUDA_VISIBLE_DEVICES shows {len(visible)} ({','.join(visible)}). Ask for the GPUs of the "
        f"whole node (SlurmConfig(gpu_request='gpus-per-node')), or for fewer a worker."
    )
