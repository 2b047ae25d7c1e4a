"""`DataConfig`: which worker gets which part of the datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.checks import show_changes, shown
from hpctrain.errors import ConfigError, WrongTypeError
from hpctrain.rules import checked, or_default, several, text, with_value


def _datasets(what: str, value: Any) -> Any:
    if isinstance(value, str) and value == "all":
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        instead = f" Give [{shown(value)}]." if isinstance(value, str) else ""
        # Ray Train's is a TypeError, which this is too, and its tests look for the words.
        raise WrongTypeError(
            f"{with_value(what, value)}: `datasets_to_split` should be 'all' or a list of dataset "
            f"names.{instead}"
        )
    return several(text)(what, value)


@checked(datasets_to_split=or_default(_datasets))
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which datasets are split over the ranks; every rank gets all rows of the others."""

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    """``"all"``, or the names of those to split."""

    __repr__ = show_changes

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Sequence[Any] | None = None,
        worker_node_ids: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Return which datasets, or parts of them, each worker gets. Not collective.

        A subclass may override it. Rank 0 calls it before the training function begins, with the
        current workers, and broadcasts the result to the other ranks.

        Parameters
        ----------
        datasets
            The trainer's datasets, preprocessed.
        world_size
            Number of workers.
        worker_handles
            Ray Train's handles of actors: None.
        worker_node_ids
            Host name of each worker's node.
        **kwargs
            Arguments of later versions.

        Returns
        -------
        list
            For each worker the datasets by name, which ``get_dataset_shard()`` returns there: parts
            from `hpctrain.data.Dataset.shard`, datasets, or any other object. Further dicts, for
            missing workers, may hold only what the others hold.

        Raises
        ------
        ConfigError
            If a dataset is not from `hpctrain.data`.
        """
        workers: list[dict[str, Any]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            if not hasattr(dataset, "shard"):
                raise ConfigError(
                    f"DataConfig.configure(): dataset {name!r} of type {type(dataset).__name__} "
                    f"has no shard(). Make a Dataset of it: hpctrain.data.from_numpy(), "
                    f"from_pandas() and the like."
                )
            split = self.datasets_to_split == "all" or name in self.datasets_to_split
            for rank, worker in enumerate(workers):
                place = (rank, world_size) if split else (0, 1)
                worker[name] = dataset.shard(rank=place[0], world_size=place[1])
        return workers
