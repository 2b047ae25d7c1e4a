"""LightGBM's datasets from a rank's rows.

Bins are computed from a sample of the rows of all ranks. LightGBM itself would compute the bins of
a feature from the rows of one rank, which are not representative if rows are sorted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import lightgbm
import numpy as np
from lightgbm.basic import ZERO_THRESHOLD, _c_str, _param_dict_to_str, _safe_call

from hpctrain.gbdt.boosting import TRAIN
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.table import Array, ShardReader, Table
from hpctrain.lightgbm.network import shared_library
from hpctrain.world import Communicator

_SAMPLE_ROWS = 200_000
_CHUNK_ROWS = 65536


class DatasetMaker:
    """Makes a dataset for each dataset of a rank, ``train`` first. Collective.

    Parameters
    ----------
    features
        Features of all datasets.
    params
        Parameters of LightGBM and of its datasets, by their main names.
    dtype
        Type of the features.
    comm
        Communicator of all ranks.
    """

    def __init__(
        self, features: Features, params: Mapping[str, Any], *, dtype: Any, comm: Communicator
    ) -> None:
        self._features = features
        self._params = dict(params)
        self._dtype = dtype
        self._comm = comm

    def in_memory(self, tables: Mapping[str, Table]) -> dict[str, lightgbm.Dataset]:
        """Return datasets of tables. Collective."""
        train = tables[TRAIN]
        reference = self._bins([train], train.num_rows)
        made: dict[str, lightgbm.Dataset] = {}
        for name, table in tables.items():
            made[name] = self._dataset(
                lightgbm.Dataset,
                table.matrix,
                made.get(TRAIN, reference),
                label=table.label,
                weight=table.weight,
                group=table.groups,
            )
        return made

    def streamed(
        self, readers: Mapping[str, ShardReader], rows: Mapping[str, int]
    ) -> dict[str, lightgbm.Dataset]:
        """Return datasets that read their rows batch by batch. Collective.

        Parameters
        ----------
        rows
            Numbers of this rank's rows, by dataset.
        """
        train = readers[TRAIN]
        reference = self._bins(train.tables(self._features, self._dtype), rows[TRAIN])
        made: dict[str, lightgbm.Dataset] = {}
        for name, reader in readers.items():
            label, weight = _labels(reader.tables(self._features, self._dtype))
            source = _Rows(reader, self._features, self._dtype, rows[name])
            made[name] = self._dataset(
                _StreamedDataset, source, made.get(TRAIN, reference), label=label, weight=weight
            )
        return made

    def _bins(self, tables: Iterable[Table], num_rows: int) -> lightgbm.Dataset:
        """Return a dataset from which others take their bins. Collective."""
        wanted = self._params.get("bin_construct_sample_cnt", _SAMPLE_ROWS)
        seed = self._params.get("data_random_seed", 1)
        total = sum(self._comm.allgather(num_rows))
        mine = num_rows if total <= wanted else num_rows * wanted // total
        random = np.random.default_rng([seed, self._comm.rank])
        chosen = np.sort(random.choice(num_rows, mine, replace=False))
        sample = np.concatenate(self._comm.allgather(_pick(tables, chosen)))
        return self._dataset(_Bins, _Sample(sample, total), None)

    def _dataset(
        self, kind: type[lightgbm.Dataset], source: Any, reference: Any, **columns: Any
    ) -> lightgbm.Dataset:
        names, categories = self._features.names, self._features.categories
        made = kind(
            source,
            feature_name=list(names),
            categorical_feature=[i for i, name in enumerate(names) if name in categories],
            reference=reference,
            params=self._params,
            **columns,
        )
        # LightGBM stores them in the model, and encodes the categories of a data frame with them.
        made.pandas_categorical = [list(categories[n]) for n in names if n in categories] or None
        return made


class _Sample(NamedTuple):
    """Rows, and the number of all rows that they were chosen from."""

    rows: Array
    total: int


class _Bins(lightgbm.Dataset):
    """Bins of a sample, without its rows: the reference of other datasets."""

    def _lazy_init(self, data: Any, *args: Any, **options: Any) -> lightgbm.Dataset:
        sample: _Sample = data
        self._update_params({"categorical_column": options["categorical_feature"]})
        columns = np.asarray(sample.rows.T, np.float64, order="C")
        # Values left out of a column count as zero.
        kept = [np.flatnonzero((np.abs(c) > ZERO_THRESHOLD) | np.isnan(c)) for c in columns]
        values = [column[places] for column, places in zip(columns, kept, strict=True)]
        indices = [places.astype(np.int32) for places in kept]
        counts = np.array([len(places) for places in kept], np.int32)
        num_sampled = ctypes.c_int32(len(sample.rows))
        self._handle = ctypes.c_void_p()
        # Not _init_from_sample(): it leaves min_data_in_leaf out of the parameters, and takes the
        # total for the rows to allocate. LightGBM drops features by both.
        _safe_call(
            shared_library().LGBM_DatasetCreateFromSampledColumn(
                _addresses(values, ctypes.c_double),
                _addresses(indices, ctypes.c_int32),
                ctypes.c_int32(len(columns)),
                counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
                num_sampled,
                num_sampled,
                ctypes.c_int64(sample.total),
                _c_str(_param_dict_to_str(self.params)),
                ctypes.byref(self._handle),
            )
        )
        return self.set_feature_name(options["feature_name"])


def _addresses(columns: Sequence[Array], kind: Any) -> Any:
    pointer = ctypes.POINTER(kind)
    return (pointer * len(columns))(*(column.ctypes.data_as(pointer) for column in columns))


class _Rows(lightgbm.Sequence):
    """The rows of a rank, which LightGBM reads in order, from the first to the last."""

    batch_size = _CHUNK_ROWS

    def __init__(self, reader: ShardReader, features: Features, dtype: Any, num_rows: int) -> None:
        self.reader, self.features, self.dtype = reader, features, dtype
        self._num_rows = num_rows
        self._chunks: Iterator[Array] = iter(())

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: Any) -> Any:
        if index.start == 0:
            tables = self.reader.tables(self.features, self.dtype)
            self._chunks = _rechunk((table.matrix for table in tables), self.batch_size)
        return next(self._chunks)


class _StreamedDataset(lightgbm.Dataset):
    """A dataset that also gets the scores of the model it resumes from batch by batch."""

    def _set_init_score_by_predictor(
        self, predictor: Any, data: Any, used_indices: Any
    ) -> lightgbm.Dataset:
        if predictor is None:
            return super()._set_init_score_by_predictor(predictor, data, used_indices)
        tables = data.reader.tables(data.features, data.dtype)
        scores = [predictor.predict(table.matrix, raw_score=True) for table in tables]
        # LightGBM stores scores class by class.
        return self.set_init_score(np.concatenate(scores).ravel(order="F"))


def _rechunk(blocks: Iterable[Array], size: int) -> Iterator[Array]:
    """Yield the rows of blocks in chunks of one size; the last one may be smaller."""
    waiting: list[Array] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += len(block)
        if count < size:
            continue
        joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        full = count - count % size
        for start in range(0, full, size):
            yield joined[start : start + size]
        waiting, count = [joined[full:]], count - full
    if count:
        yield np.concatenate(waiting)


def _pick(tables: Iterable[Table], chosen: Array) -> Array:
    """Return the rows of sorted numbers."""
    picked = []
    start = 0
    for table in tables:
        low, high = np.searchsorted(chosen, [start, start + table.num_rows])
        picked.append(table.matrix[chosen[low:high] - start])
        start += table.num_rows
    return np.concatenate(picked)


def _labels(tables: Iterable[Table]) -> tuple[Array, Array | None]:
    labels, weights = [], []
    for table in tables:
        labels.append(table.label)
        if table.weight is not None:
            weights.append(table.weight)
    return np.concatenate(labels), np.concatenate(weights) if weights else None
