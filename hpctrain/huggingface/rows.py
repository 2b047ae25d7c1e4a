"""Rows of a `hpctrain.data.Dataset` for a `transformers.Trainer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from hpctrain.data.dataset import Dataset
from hpctrain.data.formats import rows_of
from hpctrain.data.iterator import DataIterator
from hpctrain.data.shard import DatasetShard
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.data.split import Tail


class TrainingRows(IterableDataset[Any]):
    """A whole dataset, as the ``train_dataset`` of a `transformers.Trainer`.

    A prepared trainer reads each rank's part of it, and does not iterate over this.

    Parameters
    ----------
    dataset
        The rows.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        """The rows."""

    def __len__(self) -> int:
        """Return the number of rows, before filters."""
        return self.dataset.source.num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the rows."""
        return map(_plain, self.dataset.iter_rows())


class EvaluationRows(TorchDataset[Any]):
    """A whole dataset, row by row: a `transformers.Trainer` shares it out itself.

    Parameters
    ----------
    dataset
        The rows. They are read when asked for, unless a filter leaves their number open.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = _counted(dataset)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._dataset.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of a batch; those that lie together are read together."""
        return [_plain(row) for row in self._dataset.take_ranges(_runs(indices)).iter_rows()]


class TrainingBatches(IterableDataset[Any]):
    """The batches of a rank's part, an epoch at each iteration.

    Parameters
    ----------
    part
        The part.
    trainer
        The `transformers.Trainer` that they are for.
    """

    def __init__(self, part: DataIterator, trainer: Any) -> None:
        self._part = part
        self._trainer = trainer

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return self._part.dataset.num_rows

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on every rank."""
        return self._part.num_batches(self._trainer._train_batch_size, tail=self._tail)

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the epoch that the trainer is in."""
        trainer, args = self._trainer, self._trainer.args
        # The epoch of a trainer counts steps: in the middle of its second one it is 1.5.
        epoch = int(trainer.state.epoch or 0)
        self._part.load_state_dict({"epoch": epoch, "taken": [], "mixing": None})
        collate = trainer._get_collator_with_removed_columns(trainer.data_collator, "Training")
        for batch in self._part.iter_batches(
            batch_size=trainer._train_batch_size,
            shuffle=args.train_sampling_strategy != "sequential",
            local_shuffle_seed=args.seed if args.data_seed is None else args.data_seed,
            tail=self._tail,
        ):
            yield collate([_plain(row) for row in rows_of(batch)])

    @property
    def _tail(self) -> Tail | None:
        return "drop" if self._trainer.args.dataloader_drop_last else None


def training_loader(trainer: Any, *, rank: int, world_size: int) -> DataLoader[Any]:
    """Return what gives a `transformers.Trainer` the batches of a rank. Not collective."""
    # A filter would leave batches of any size, and none at all is more than collators take.
    whole = _counted(as_dataset(trainer.train_dataset))
    part = whole.shard(rank=rank, world_size=world_size)
    return DataLoader(
        TrainingBatches(part, trainer),
        batch_size=None,
        collate_fn=_as_it_is,
        pin_memory=trainer.args.dataloader_pin_memory and trainer.args.device.type != "cpu",
    )


def is_ours(dataset: Any) -> bool:
    """Return whether rows come from a `hpctrain.data.Dataset`. Not collective."""
    return isinstance(dataset, (Dataset, DataIterator, TrainingRows))


def as_dataset(dataset: Any) -> Dataset:
    """Return the whole that rows come from. Not collective."""
    whole: Dataset = dataset if isinstance(dataset, Dataset) else dataset.dataset
    return whole


def check_shared_out(dataset: Any, name: str) -> None:
    """Refuse a dataset that has been shared out over the ranks, and would be a second time.

    Not collective.

    Raises
    ------
    ConfigError
        If so.
    """
    if isinstance(dataset, Mapping):
        for part in dataset.values():
            check_shared_out(part, name)
    if isinstance(dataset, DatasetShard):
        raise ConfigError(
            f"{name} is this rank's part already, and a transformers.Trainer shares it out over "
            f"the ranks again. Leave it whole: DataConfig(datasets_to_split=[])."
        )


def _counted(dataset: Dataset) -> Dataset:
    """Return rows whose number is known; what a filter leaves is read for that."""
    return dataset if dataset.keeps_rows else dataset.materialize()


def _runs(indices: Sequence[int]) -> list[range]:
    """Return numbers as ranges of those that follow each other."""
    numbered = groupby(enumerate(indices), key=lambda item: item[1] - item[0])
    runs = [[index for _, index in run] for _, run in numbered]
    return [range(run[0], run[-1] + 1) for run in runs]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with Python's own numbers: collators tell an integer label by its type."""
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in row.items()}


def _as_it_is(batch: Any) -> Any:
    return batch
