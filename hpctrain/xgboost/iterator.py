"""XGBoost's iterator over the batches of a rank's shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from xgboost import DataIter

from hpctrain.gbdt.features import Features
from hpctrain.gbdt.table import ShardReader, Table


def make_iterator(
    reader: ShardReader, features: Features, *, types: list[str] | None, cache: Path | None
) -> DataIter:
    """Return an iterator for a quantile matrix, which reads the shard several times.

    Parameters
    ----------
    types
        Of the features, for XGBoost; None if all are numbers.
    cache
        Prefix of the files that hold the compressed pages of external memory; None keeps them in
        memory.
    """
    return _ShardIterator(reader, features, types, None if cache is None else str(cache))


class _ShardIterator(DataIter):
    def __init__(
        self, reader: ShardReader, features: Features, types: list[str] | None, cache: str | None
    ) -> None:
        self._reader = reader
        self._features = features
        self._types = types
        self._tables: Iterator[Table] = iter(())
        super().__init__(cache_prefix=cache)

    def next(self, input_data: Callable[..., None]) -> bool:
        table = next(self._tables, None)
        if table is None:
            return False
        input_data(
            data=table.matrix,
            label=table.label,
            weight=table.weight,
            feature_names=list(self._features.names),
            feature_types=self._types,
        )
        return True

    def reset(self) -> None:
        self._tables = self._reader.tables(self._features, np.float32)
