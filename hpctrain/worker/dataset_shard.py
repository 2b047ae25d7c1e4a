"""A rank's part of a dataset that the trainer was given."""

from __future__ import annotations

from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.worker.active_worker import ActiveWorker
from hpctrain.worker.train_context import TrainContext


def take_shard(worker: ActiveWorker, dataset_name: str) -> Any:
    """Return a rank's part of a dataset; see `hpctrain.get_dataset_shard`. Not collective.

    Raises
    ------
    KeyError
        If the trainer was given no such dataset.
    ConfigError
        If it cannot be split.
    """
    from hpctrain.data.shard import is_dataset, is_iterator, shard_dataset
    from hpctrain.worker.assignment import made

    if dataset_name in worker.iterators:
        return worker.iterators[dataset_name]
    datasets = worker.datasets if worker.assigned is None else worker.assigned
    if dataset_name not in datasets:
        raise KeyError(
            f"dataset {dataset_name!r} was not given to the trainer. It has "
            f"{sorted(datasets) or 'none'}."
        )
    dataset = datasets[dataset_name]
    if worker.assigned is None:
        dataset = made(dataset_name, dataset, worker.preprocessor)
        split = worker.datasets_to_split == "all" or dataset_name in worker.datasets_to_split
    else:
        split = False
        if is_iterator(dataset) and dataset.device == "cpu":
            dataset.device = _device(worker.context)
    world = worker.context.world
    if is_dataset(dataset):
        iterator = worker.iterators[dataset_name] = dataset.shard(
            rank=world.world_rank if split else 0,
            world_size=world.world_size if split else 1,
            device=_device(worker.context),
        )
        return iterator
    if not split:
        return dataset
    try:
        return shard_dataset(dataset, rank=world.world_rank, world_size=world.world_size)
    except ConfigError as error:
        raise ConfigError(f"dataset {dataset_name!r}: {error}") from error


def _device(context: TrainContext) -> str:
    """Return the rank's first GPU, or the CPU, as torch calls it."""
    return f"cuda:{context.gpu_indices[0]}" if context.gpu_ids else "cpu"
