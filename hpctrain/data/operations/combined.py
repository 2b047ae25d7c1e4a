"""Some of the rows, and several datasets together: lazy, streamed, each rank its own part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, is_integer, is_real, items_of, num_parts, row_limit
from hpctrain.data.operations.derived import as_source, union_schema
from hpctrain.data.operations.description import DatasetT, Description
from hpctrain.data.operations.row_steps import Rename
from hpctrain.data.operations.sampled import SampledRows
from hpctrain.data.operations.scheduling import say_no_meaning
from hpctrain.data.operations.whole import with_known_rows
from hpctrain.data.shard import shard_rows
from hpctrain.data.source import Concatenated, RowRanges, SideBySide, check_range, take_rows
from hpctrain.data.stream import choose_mixing, rebatch
from hpctrain.errors import ConfigError

EachEpoch = Literal["epoch"]
"""A seed: each epoch has its own order, the same in each run."""


class Combined(Description):
    """Operations that choose rows, and those that put datasets together.

    After `filter`, or another step with an unknown number of rows, most of them read all rows into
    memory once, with the first read.
    """

    def limit(self: DatasetT, limit: int) -> DatasetT:
        """Return a dataset of the first rows, all if there are fewer.

        Not collective.

        Raises
        ------
        ConfigError
            If it is not an integer of 0 or more.
        """
        most = row_limit(limit)
        if self.keeps_rows:
            return _ranges(self, [range(min(most, self.source.num_rows))])
        pieces = self.pieces([range(self.source.num_rows)])
        first = list(rebatch(pieces, [most]))
        return self.in_memory(first[0] if first else _ranges(self, []).all_rows())

    def take_ranges(self: DatasetT, ranges: Sequence[range]) -> DatasetT:
        """Return a dataset of some rows of the source, by ranges of step 1, in their order.

        Not collective.

        Raises
        ------
        ConfigError
            If a range has another step, or rows that do not exist.
        """
        chosen = items_of(ranges)
        if chosen is None or isinstance(ranges, range | str):
            raise ConfigError(
                f"take_ranges({shown(ranges)}) is not a list of ranges. Give one, such as "
                f"[range(0, 10)]."
            )
        return _ranges(self, chosen)

    def random_shuffle(self: DatasetT, *, seed: int | EachEpoch | None = "epoch") -> DatasetT:
        """Return a dataset with its rows in another order.

        Not collective. Blocks come from all over the dataset, and rows are permuted within several
        blocks at a time; nothing is written. After `filter` the rows are read into memory. Each
        epoch of a `DataIterator` has an order of its own, unless a seed is given. The datasets that
        `limit`, a split, `zip`, `groupby` or a sort return keep the order of epoch 0 throughout.

        Parameters
        ----------
        seed
            With a number the order is the same in each epoch. With "epoch" it depends on the epoch
            alone, so it is the same in each run. None draws a number now, and each epoch has an
            order of its own.
        """
        from hpctrain.data.shuffled import ShuffledRows

        known = with_known_rows(self)
        mixing = choose_mixing(
            known.source, known.read_schema.row_bytes, buffer_rows=None, seed=_seed(seed)
        )
        source = ShuffledRows(source=known.source, mixing=mixing, each_epoch=_is_anew(seed))
        shuffled: DatasetT = replace(known, source=source)
        return shuffled

    def randomize_block_order(
        self: DatasetT, *, seed: int | EachEpoch | None = "epoch"
    ) -> DatasetT:
        """Return a dataset whose blocks are in another order; the rows of a block keep theirs.

        Not collective. A block is some MiB of rows that are read at once, or a row group of
        Parquet. Blocks are smaller if rows can be read one by one and there would be fewer than a
        hundred. After `filter` the rows are read into memory. `random_shuffle` also mixes the rows.

        Parameters
        ----------
        seed
            Seed of the order, as in `random_shuffle`.
        """
        from hpctrain.data.shuffled import ShuffledPieces, in_order_of, pieces_of

        known: DatasetT = with_known_rows(self)
        number = _seed(seed)
        mixed = _ranges(known, in_order_of(pieces_of(known.source), number))
        if not _is_anew(seed):
            return mixed
        chosen = mixed.source
        assert isinstance(chosen, RowRanges)
        source = ShuffledPieces(source=chosen.source, ranges=chosen.ranges, seed=number)
        return replace(mixed, source=source)

    def random_sample(self: DatasetT, fraction: float, *, seed: int | None = None) -> DatasetT:
        """Return a dataset of a share of the rows, each drawn independently, in their order.

        Not collective. Every pass and every rank gets the same rows.

        Parameters
        ----------
        fraction
            Share of the rows, from 0 to 1.
        seed
            Seed of the draw; None draws a seed now.

        Raises
        ------
        ConfigError
            If `fraction` is not between 0 and 1.
        """
        if not is_real(fraction) or not 0 <= fraction <= 1:
            raise ConfigError(
                f"fraction={shown(fraction)} is not a share of the rows. Give a number from 0 to 1."
            )
        known = with_known_rows(self)
        source = SampledRows(source=known.source, fraction=fraction, seed=_seed(seed))
        sampled: DatasetT = replace(known, source=source)
        return sampled

    def train_test_split(
        self: DatasetT, test_size: int | float, *, shuffle: bool = False, seed: int | None = 0
    ) -> tuple[DatasetT, DatasetT]:
        """Return a dataset to train with, and one to test with.

        Not collective.

        Parameters
        ----------
        test_size
            Rows of the second one, or its share of the rows, between 0 and 1.
        shuffle
            Whether its rows are drawn from all over the dataset; otherwise they are the last ones.
        seed
            Seed of the draw; None draws a seed now.

        Raises
        ------
        ConfigError
            If one of the two would be empty.
        """
        if not is_real(test_size):
            raise ConfigError(
                f"train_test_split(test_size={shown(test_size)}) is not a number. Give a number of "
                f"rows, or a share between 0 and 1."
            )
        known = with_known_rows(self)
        total = known.source.num_rows
        rows = int(test_size) if is_integer(test_size) else round(total * test_size)
        if not 0 < rows < total:
            raise ConfigError(
                f"train_test_split(test_size={test_size!r}) leaves a part of {total} rows empty. "
                f"Give a number of rows below {total}, or a share between 0 and 1."
            )
        whole = known.random_shuffle(seed=_seed(seed)) if flag("shuffle", shuffle) else known
        train, test = _cut(whole, [total - rows])
        return train, test

    def split(
        self: DatasetT, n: int, *, equal: bool = False, locality_hints: Any = None
    ) -> list[DatasetT]:
        """Return datasets of rows that follow each other, of about the same size.

        Not collective. For the ranks of a run no split is needed: each gets its part.

        Parameters
        ----------
        n
            Number of parts.
        equal
            Whether all parts have the same number of rows; rows that remain are left out.
            Otherwise the parts differ by one row at most.
        locality_hints
            Accepted, without effect.

        Raises
        ------
        ConfigError
            If `n` is not an integer from 1 to 100,000.
        """
        say_no_meaning("split()", {"locality_hints": locality_hints})
        parts = num_parts(n)
        known = with_known_rows(self)
        total = known.source.num_rows
        total -= total % parts if flag("equal", equal) else 0
        return [
            _ranges(known, [shard_rows(total, rank=part, world_size=parts)])
            for part in range(parts)
        ]

    def split_at_indices(self: DatasetT, indices: Sequence[int]) -> list[DatasetT]:
        """Return datasets of the rows before, between and after some positions.

        Not collective.

        Parameters
        ----------
        indices
            Where to cut, in order. Positions beyond the last row cut after it.

        Raises
        ------
        ConfigError
            If there is none, one is negative, or they are not in order.
        """
        cuts = items_of(indices)
        if not cuts or not all(map(is_integer, cuts)) or sorted(cuts) != cuts or cuts[0] < 0:
            raise ConfigError(
                f"indices={shown(indices)} are not positions to cut at. Give one or more integers "
                f"of 0 or more, in ascending order."
            )
        known = with_known_rows(self)
        return _cut(known, [min(int(cut), known.source.num_rows) for cut in cuts])

    def split_proportionately(self: DatasetT, proportions: Sequence[float]) -> list[DatasetT]:
        """Return datasets of shares of the rows, and one of the rest.

        Not collective.

        Parameters
        ----------
        proportions
            Shares, each above 0 and together below 1.

        Raises
        ------
        ConfigError
            If they are not.
        """
        shares = items_of(proportions)
        if not shares or not all(map(is_real, shares)) or min(shares) <= 0 or sum(shares) >= 1:
            raise ConfigError(
                f"proportions={shown(proportions)} are not shares of the rows. Give numbers above "
                f"0 whose sum is below 1; the last part is the rest."
            )
        known = with_known_rows(self)
        return _cut(known, [int(known.source.num_rows * s) for s in np.cumsum(shares)])

    def union(self: DatasetT, *other: DatasetT) -> DatasetT:
        """Return a dataset of the rows of this one and of others, one after another.

        Not collective. Where a dataset lacks a column, its rows have missing values there.

        Raises
        ------
        ConfigError
            If the types of a column have no common type.
        """
        known = [with_known_rows(one) for one in (self, *_datasets("union()", other))]
        found = [(dataset, dataset.schema()) for dataset in known]
        # Without rows and columns there are no types.
        found = [pair for pair in found if pair[1]] or found[:1]
        schema = union_schema([own for _, own in found])
        return self.of_source(Concatenated(parts=tuple(as_source(d, schema) for d, _ in found)))

    def zip(self: DatasetT, *other: DatasetT) -> DatasetT:
        """Return a dataset of the columns of this one and of others, row by row.

        Not collective. The second column of a name gets the suffix ``_1``, the third ``_2``.

        Raises
        ------
        ConfigError
            If they have different numbers of rows.
        """
        taken: list[str] = []
        parts = []
        for dataset in map(with_known_rows, (self, *_datasets("zip()", other))):
            names = dataset.columns()
            new = [_free(name, [*taken, *(n for n in names if n != name)]) for name in names]
            taken += new
            parts.append(as_source(dataset if new == names else dataset.with_step(Rename(new))))
        if len({part.num_rows for part in parts}) > 1:
            raise ConfigError(
                f"zip(): the datasets have {', '.join(str(p.num_rows) for p in parts)} rows. Give "
                f"datasets of the same number of rows: limit() leaves rows out."
            )
        return self.of_source(SideBySide(parts=tuple(parts)))

    def repartition(
        self: DatasetT,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        shuffle: bool = False,
    ) -> DatasetT:
        """Return the dataset unchanged: it has no blocks to arrange.

        Not collective. Ranks get parts whose sizes differ by one row at most.

        Parameters
        ----------
        num_blocks, target_num_rows_per_block
            Accepted, without effect.
        shuffle
            Whether to shuffle the rows, as `random_shuffle` does.
        """
        say_no_meaning(
            "repartition()",
            {"num_blocks": num_blocks, "target_num_rows_per_block": target_num_rows_per_block},
        )
        return Combined.random_shuffle(self) if flag("shuffle", shuffle) else self


def _ranges(dataset: DatasetT, ranges: Sequence[range]) -> DatasetT:
    source = dataset.source
    ranges = [check_range(rows, source.num_rows) for rows in ranges]
    if isinstance(source, RowRanges):
        inner = [part for rows in ranges for part in take_rows(source.ranges, rows)]
        return replace(dataset, source=RowRanges(source=source.source, ranges=tuple(inner)))
    return replace(dataset, source=RowRanges(source=source, ranges=tuple(ranges)))


def _datasets(what: str, given: Sequence[Any]) -> Sequence[Any]:
    for one in given:
        if not isinstance(one, Description):
            raise ConfigError(
                f"{what}: {shown(one)} is not a Dataset. Make one, as with "
                f"hpctrain.data.from_items(), or give several datasets one by one."
            )
    return given


def _cut(dataset: DatasetT, borders: Sequence[int]) -> list[DatasetT]:
    edges = pairwise([0, *borders, dataset.source.num_rows])
    return [_ranges(dataset, [range(start, stop)]) for start, stop in edges]


def _free(name: str, taken: Sequence[str]) -> str:
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _seed(seed: int | EachEpoch | None) -> int:
    if seed is None:
        return random.SystemRandom().randrange(2**32)
    if isinstance(seed, str) and seed == "epoch":
        return 0
    if not is_integer(seed) or seed < 0:
        raise ConfigError(
            f'seed={shown(seed)} is not a seed. Give an integer of 0 or more, "epoch" or None.'
        )
    return int(seed)


def _is_anew(seed: int | EachEpoch | None) -> bool:
    """Return whether each epoch has its own order."""
    return not isinstance(seed, Integral)
