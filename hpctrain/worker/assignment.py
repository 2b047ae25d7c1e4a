"""What each rank gets of the datasets where the user's ``DataConfig.configure()`` assigns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.plan import spec
from hpctrain.plan.spec import WorkerSpec
from hpctrain.world import Communicator, World

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor


def assign_datasets(
    worker_spec: WorkerSpec, world: World, comm: Communicator, preprocessor: Preprocessor | None
) -> Mapping[str, Any] | None:
    """Return this rank's datasets by name; None if none of the user's own functions assigns them.

    Collective. Rank 0 calls the function, so that what it draws at random is the same for all.

    Raises
    ------
    ConfigError
        If it does not return a mapping for each rank, or more, with what no rank has.
    """
    config = worker_spec.data_config
    if config is None:
        return None
    hostnames = comm.gather(world.hostname)
    packed = None
    if comm.rank == 0:
        datasets = {
            name: made(name, dataset, preprocessor)
            for name, dataset in worker_spec.datasets.items()
        }
        parts = config.configure(
            datasets, world.world_size, worker_handles=None, worker_node_ids=hostnames
        )
        _check(parts, config, world.world_size)
        packed = spec.pack(list(parts), what=f"what {_name(config)} returns")
    mine: Mapping[str, Any] = spec.unpack(comm.bcast(packed))[world.world_rank]
    return mine


def made(name: str, dataset: Any, preprocessor: Preprocessor | None) -> Any:
    """Return a dataset that may be a function which makes it, preprocessed. Not collective."""
    if callable(dataset) and not hasattr(dataset, "__getitem__"):
        dataset = dataset()
    if preprocessor is None:
        return dataset
    from hpctrain.preprocessors.training import transformed

    return transformed(preprocessor, name, dataset)


def _check(parts: Any, config: Any, world_size: int) -> None:
    if (
        not isinstance(parts, Sequence)
        or len(parts) < world_size
        or not all(isinstance(part, Mapping) for part in parts)
        or not all(_repeats(part, parts[:world_size]) for part in parts[world_size:])
    ):
        raise ConfigError(
            f"{_name(config)} returned {shown(parts)}. It returns a list with a dict for each of "
            f"the {world_size} workers: their datasets by name."
        )


def _repeats(unused: Mapping[str, Any], used: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether workers have all that is in a dict for which there is no worker.

    Ray Train ignores such a dict, which is right where each has the whole dataset. A part that no
    worker has would be missing in the training.
    """
    return all(
        any(name in part and _is_the_same(part[name], dataset) for part in used)
        for name, dataset in unused.items()
    )


def _is_the_same(one: Any, other: Any) -> bool:
    from hpctrain.data.shard import is_iterator

    if not (is_iterator(one) and is_iterator(other)):
        return one is other
    return one is other or (one.dataset is other.dataset and one.is_whole and other.is_whole)


def _name(config: Any) -> str:
    return f"{type(config).__name__}.configure()"
