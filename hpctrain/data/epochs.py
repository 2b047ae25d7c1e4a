"""`Epochs`: where one rank is in the epochs of a dataset, and the batches that come next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, integer, shuffle_buffer
from hpctrain.data.batch import Batch, check_batch_size, num_rows
from hpctrain.data.dataset import Dataset
from hpctrain.data.passes import SizedPasses
from hpctrain.data.prefetch import prefetch, spare_threads
from hpctrain.data.row_order import digest_order
from hpctrain.data.source import at_epoch, block_rows, read_rows
from hpctrain.data.split import Tail, Taken, batch_sizes, check_tail, left_over, part_of
from hpctrain.data.stream import (
    Mixing,
    bytes_of_task,
    choose_mixing,
    rebatch,
    tasks_in_order,
    tasks_shuffled,
)
from hpctrain.data.window import Memory
from hpctrain.errors import ConfigError
from hpctrain.loop_time import timed

_OF_A_STATE = {"epoch", "taken", "mixing"}


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The arguments of an epoch."""

    batch_size: int
    sizes: list[int]
    """Rows of each batch of this rank."""
    tail: Tail
    mixing: Mixing | None
    prefetch_batches: int
    epoch: int
    before: tuple[Taken, ...]
    """The rows of the epoch that were already taken at its start."""
    by_rows: bool
    """Whether rows are given out one by one, and not batches."""
    loads: int
    """How many states had been loaded when the epoch was requested."""


class Epochs:
    """The position of one rank in its epochs.

    The order of an epoch depends on seed and epoch alone, and the next rows on how many rows have
    been given out.

    Parameters
    ----------
    dataset
        The whole dataset.
    rank, world_size
        Which part of it, of how many.
    tail
        What happens to rows that do not fill a batch on every rank.
    """

    def __init__(self, dataset: Dataset, *, rank: int, world_size: int, tail: Tail) -> None:
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size
        self._tail = tail
        self.epoch = 0
        """Number of the epoch that has begun, or that begins next; from 0."""
        self._memory = Memory()
        self._before: tuple[Taken, ...] = ()
        self._rows = 0
        """Rows of the batches that have been given out."""
        self._given = 0
        """Rows of the newest of these that have been given out, if they are one by one."""
        self._moving: _Settings | None = None
        """Settings of the iterator that advances the position: the first one of the epoch."""
        self._loads = 0
        self._mixing: Mixing | None = None
        """Arguments of the current epoch, which must stay the same."""

    @property
    def is_resumed(self) -> bool:
        """Whether a loaded state was in the middle of the epoch."""
        return bool(self._before)

    def rows(self) -> list[range]:
        """Return the rows of this rank in a whole epoch, before filters. Not collective."""
        return self._part(())

    def num_batches(self, batch_size: int, tail: Tail | None) -> int:
        """Return how many batches a whole epoch has. Not collective.

        Raises
        ------
        ConfigError
            If "drop" leaves none.
        """
        check_batch_size(batch_size)
        return len(self._sizes((), batch_size, self._checked(tail)))

    def num_rows_in(self, batch_size: int) -> int:
        """Return how many rows the batches of a whole epoch have. Not collective."""
        return sum(self._whole(batch_size, self._tail))

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and position in it, as values for JSON; the same on every rank.

        Not collective. The position counts the batches, or rows, that have been given out.
        """
        taken = list(self._before)
        if self._moving and self._rows:
            taken.append(self._taken(self._moving))
        return {
            "epoch": self.epoch,
            "taken": [asdict(some) for some in taken],
            "mixing": asdict(self._mixing) if taken and self._mixing else None,
            "num_rows": self._dataset.source.num_rows,
            "order": self._order,
        }

    @cached_property
    def _order(self) -> str | None:
        return digest_order(self._dataset.source)

    def _taken(self, settings: _Settings) -> Taken:
        rows, tail = self._rows, settings.tail
        if settings.by_rows:
            # The rows that a filter leaves of a batch do not say how many of it were given out.
            given = self._given if self._dataset.keeps_rows else 0
            before = rows - settings.batch_size
            if tail == "pad" or not self._dataset.keeps_rows:
                rows = before + given
            else:
                # Each rank has given out as many rows, whether its first batch lacks one or not.
                rows = sum(settings.sizes[: before // settings.batch_size]) + given
                tail = "drop"
        return Taken(self._world_size, rows, tail)

    def load_state_dict(self, state: Any) -> None:
        """Resume after the batches that had been given out, with as many ranks as there are now.

        Not collective, but every rank must load the same state.

        Raises
        ------
        ConfigError
            If the dataset has another number of rows than it had, or another order of rows.
        """
        rows = self._dataset.source.num_rows
        is_state = isinstance(state, Mapping) and state.keys() >= _OF_A_STATE
        # At the beginning of an epoch any number of rows will do.
        if not is_state or (state["taken"] and "num_rows" not in state):
            raise ConfigError(
                f"load_state_dict({shown(state)}) is not what state_dict() returned. Give the dict "
                f"that was saved, or begin with the first epoch."
            )
        if state["taken"] and state["num_rows"] != rows:
            raise ConfigError(
                f"the dataset has {rows} rows, and had {state['num_rows']} when epoch "
                f"{state['epoch']} began. An epoch resumes only with the same rows: give the same "
                f"files, or begin the next epoch."
            )
        # Older versions saved no order.
        if state["taken"] and state.get("order", self._order) != self._order:
            raise ConfigError(
                f"the dataset's rows are in another order than when epoch {state['epoch']} began: "
                f"its random_shuffle(), random_sample(), sort() or the like differ. An epoch "
                f"resumes only with the same order: give the same seeds, which seed=None draws "
                f"anew each time, or begin the next epoch."
            )
        self.epoch = state["epoch"]
        self._before = tuple(Taken(**some) for some in state["taken"])
        self._rows, self._moving = 0, None
        self._loads += 1
        self._mixing = Mixing(**state["mixing"]) if state["mixing"] else None

    def passes(
        self,
        made: Callable[[Batch], Any] | None,
        *,
        batch_size: int | None,
        tail: Tail | None,
        by_rows: bool = False,
        **how: Any,
    ) -> SizedPasses[Any]:
        """Return the batches of the next epoch; each pass is an epoch of its own. Not collective.

        Parameters
        ----------
        made
            Converts each dict of arrays to what the iterator gives; None gives the dict itself.
        batch_size, tail
            As in `DataIterator.iter_batches`.
        by_rows
            Whether the iterator gives the rows of each batch one by one; `made` returns an iterator
            of them.
        **how
            As in `DataIterator.iter_batches`.

        Raises
        ------
        ConfigError
            As in `DataIterator.iter_batches`.
        """
        tail = self._checked(tail)
        size = block_rows(self._dataset.read_schema) if batch_size is None else batch_size
        # Wrong arguments fail here, not in a loop that may start much later.
        how |= {"batch_size": size, "tail": tail, "by_rows": by_rows}
        first: list[_Settings] = [self._begin(**how)]

        def begin() -> Iterator[Any]:
            settings = first.pop() if first else None
            if settings is None or settings.loads != self._loads:
                settings = self._begin(**how)
            batches = self._batches(settings)
            found = timed(batches if made is None else map(made, batches))
            return self._one_by_one(settings, found) if by_rows else found

        return SizedPasses(begin, len(self._whole(size, tail)))

    def _checked(self, tail: Tail | None) -> Tail:
        if tail is None:
            return self._tail
        check_tail(tail)
        return tail

    def _begin(
        self,
        *,
        batch_size: int,
        shuffle: bool,
        local_shuffle_buffer_size: int | None,
        local_shuffle_seed: int,
        tail: Tail,
        prefetch_batches: int,
        by_rows: bool,
    ) -> _Settings:
        check_batch_size(batch_size)
        mixing = None
        buffer = shuffle_buffer(local_shuffle_buffer_size)
        integer("prefetch_batches", prefetch_batches, at_least=0)
        if flag("shuffle", shuffle) or buffer is not None:
            mixing = choose_mixing(
                self._dataset.source,
                self._dataset.read_schema.row_bytes,
                buffer_rows=buffer,
                # None would be another order on each rank.
                seed=integer("local_shuffle_seed", local_shuffle_seed, at_least=0),
            )
        if self._rows:
            self._end_epoch()
        if self._before and mixing != self._mixing:
            raise ConfigError(
                f"epoch {self.epoch} began with {self._mixing or 'no shuffle'} and cannot resume "
                f"with {mixing or 'none'}. Give the same columns, seed and buffer size as before."
            )
        self._mixing = mixing
        return _Settings(
            batch_size=batch_size,
            sizes=self._sizes(self._before, batch_size, tail),
            tail=tail,
            mixing=mixing,
            prefetch_batches=prefetch_batches,
            epoch=self.epoch,
            before=self._before,
            by_rows=by_rows,
            loads=self._loads,
        )

    def _batches(self, settings: _Settings) -> Iterator[Batch]:
        dataset = self._dataset
        row_bytes, threads, ahead, bytes_each = dataset.read_schema.row_bytes, 0, 0, 0
        if settings.prefetch_batches and not dataset.is_instant:
            mixing = settings.mixing
            bytes_each = bytes_of_task(dataset.source, dataset.columns_read)
            bytes_each = mixing.window_rows * row_bytes if mixing else bytes_each
            threads = spare_threads(bytes_each)
            wanted = settings.prefetch_batches * settings.batch_size * row_bytes
            ahead = 1 + wanted // max(bytes_each, 1)
        pieces = prefetch(
            self._tasks(settings), threads=threads, ahead=ahead, bytes_each=bytes_each
        )
        applied, filled = dataset.keeps_rows, settings.tail == "pad"
        if not self._rows and (settings.epoch, settings.before) == (self.epoch, self._before):
            self._moving = settings
        for batch in rebatch(pieces, settings.sizes):
            if settings is self._moving:
                self._rows, self._given = self._rows + settings.batch_size, 0
            if filled:
                batch = self._filled(batch, settings.batch_size)
            yield batch if applied else dataset.apply(batch)
            # Memory is reused once no batch refers to it.
            del batch
        if settings is self._moving:
            self._end_epoch()

    def _one_by_one(self, settings: _Settings, batches: Iterator[Iterator[Any]]) -> Iterator[Any]:
        for rows in batches:
            for number, row in enumerate(rows, 1):
                if settings is self._moving:
                    self._given = number
                yield row

    def _tasks(self, settings: _Settings) -> Iterator[Callable[[], Batch]]:
        dataset, part = self._dataset, self._part(settings.before)
        source = at_epoch(dataset.source, settings.epoch)
        if settings.mixing is None:
            tasks = tasks_in_order(
                source,
                part,
                dataset.columns_read,
                memory=self._memory,
                batch_size=settings.batch_size,
            )
        else:
            order = settings.mixing.order(source.num_rows, settings.epoch)
            tasks = tasks_shuffled(source, order, part, dataset.columns_read, memory=self._memory)
        # Steps that may drop rows run on whole batches, so that all ranks have the same number.
        return dataset.with_steps(tasks) if dataset.keeps_rows else tasks

    def _filled(self, batch: Batch, size: int) -> Batch:
        """Return a batch with its rows repeated until it is full."""
        if num_rows(batch) == 0:
            rows = range(min(size, self._dataset.source.num_rows))
            batch = read_rows(self._dataset.source, rows, self._dataset.columns_read)
            batch = self._dataset.apply(batch) if self._dataset.keeps_rows else batch
        length = num_rows(batch)
        if length in (0, size):
            return batch
        index = np.arange(size) % length
        return {name: array[index] for name, array in batch.items()}

    def _end_epoch(self) -> None:
        self.epoch, self._before, self._rows, self._mixing = self.epoch + 1, (), 0, None
        self._moving = None

    def _part(self, before: tuple[Taken, ...]) -> list[range]:
        left = left_over(self._dataset.source.num_rows, before)
        return part_of(left, rank=self._rank, world_size=self._world_size)

    def _sizes(self, before: tuple[Taken, ...], batch_size: int, tail: Tail) -> list[int]:
        left = sum(map(len, left_over(self._dataset.source.num_rows, before)))
        sizes = self._sizes_of(left, batch_size, tail)
        if not sizes and left and not before:
            raise ConfigError(
                f"tail='drop' leaves nothing of {left} rows: they do not fill a batch of "
                f"{batch_size} on each of {self._world_size} ranks. Use smaller batches, fewer "
                f"workers, or tail='uneven'."
            )
        return sizes

    def _whole(self, batch_size: int, tail: Tail) -> list[int]:
        return self._sizes_of(self._dataset.source.num_rows, batch_size, tail)

    def _sizes_of(self, rows: int, batch_size: int, tail: Tail) -> list[int]:
        return batch_sizes(
            rows, rank=self._rank, world_size=self._world_size, batch_size=batch_size, tail=tail
        )
