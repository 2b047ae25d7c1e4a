"""Datasets of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from hpctrain.data.arguments import list_of_names
from hpctrain.data.arrow_batches import column_type, from_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.conform import conform, empty
from hpctrain.data.formats import as_column
from hpctrain.data.memory import MemorySource
from hpctrain.data.object_bytes import OVERHEAD_BYTES
from hpctrain.data.schema import Column, Schema, check_unique
from hpctrain.data.shard import items_of
from hpctrain.data.source import SingleRows, Source
from hpctrain.errors import ConfigError

# Several threads read ahead, which datasets of torch do not expect.
_ONE_AT_A_TIME = Lock()

_ADVICE = "Convert the column beforehand, or leave it out."


@dataclass(frozen=True, kw_only=True)
class _IndexedSource(SingleRows):
    """The rows of a dataset that has a length, and gives each row by its number."""

    dataset: Any
    schema: Schema

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.dataset)


@dataclass(frozen=True, kw_only=True)
class TorchSource(_IndexedSource):
    """The items of a map-style dataset of torch."""

    names: tuple[str, ...]
    """Columns, in the order in which an item has them."""

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        with _ONE_AT_A_TIME:
            items = [_as_dict(item, self.names) for item in items_of(self.dataset, rows)]
        batch = {name: _stack([item[name] for item in items]) for name in schema}
        return conform(batch, schema, where=f"items {rows.start} to {rows.stop}", advice=_ADVICE)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceSource(_IndexedSource):
    """The rows of a ``datasets.Dataset``; it pickles as the paths of its cache files."""

    def files(self) -> list[str]:
        """Return its cache files. Not collective."""
        return [entry["filename"] for entry in self.dataset.cache_files]

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows that are in memory, not in cache files."""
        return 0 if self.dataset.cache_files else int(self.dataset.data.nbytes)

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        if _has_transform(self.dataset):
            batch = _transformed(self.dataset, rows)
        else:
            table = self.dataset.with_format("arrow")[rows.start : rows.stop]
            batch = from_arrow(table.select(schema.names))
        return conform(batch, schema, where=f"rows {rows.start} to {rows.stop}", advice=_ADVICE)


def open_torch(dataset: Any, names: Sequence[str] | None) -> Source:
    """Return the items of a map-style dataset of torch.

    Not collective.

    Raises
    ------
    ConfigError
        If it has no length or no indices, or its items are not rows.
    """
    is_dict = isinstance(dataset, Mapping)
    if is_dict or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"from_torch() needs a dataset with __len__ and __getitem__; {type(dataset).__name__} "
            f"is a stream. Give it to the trainer as it is, or write it to files."
        )
    if len(dataset) == 0:
        raise ConfigError(
            f"from_torch(): {type(dataset).__name__} is empty, so its columns are unknown. Give a "
            f"dataset with at least one item."
        )
    if _is_plain_tensors(dataset):
        columns = _names_of(dataset[0], names)
        arrays = map(as_column, dataset.tensors)
        return MemorySource(arrays=dict(zip(columns, arrays, strict=True)))
    (item,) = items_of(dataset, [0])
    columns = _names_of(item, names)
    first = {name: _stack([value]) for name, value in _as_dict(item, columns).items()}
    return TorchSource(dataset=dataset, names=columns, schema=Schema.of_read(first))


def _is_plain_tensors(dataset: Any) -> bool:
    """Return whether the items of a dataset are exactly the rows of its tensors."""
    # An instance implies that torch is imported.
    torch = sys.modules.get("torch.utils.data")
    if torch is None or not isinstance(dataset, torch.TensorDataset):
        return False
    names = ("__getitem__", "__len__", "__getitems__")
    return all(
        getattr(type(dataset), name, None) is getattr(torch.TensorDataset, name, None)
        for name in names
    )


def open_huggingface(dataset: Any) -> Source:
    """Return the rows of a ``datasets.Dataset``.

    Not collective.

    Raises
    ------
    ConfigError
        If it is a stream, or several splits.
    """
    if not hasattr(dataset, "data") or not hasattr(dataset.data, "schema"):
        raise ConfigError(
            f"from_huggingface() needs a datasets.Dataset, not a {type(dataset).__name__}: choose "
            f"one split, as in load_dataset(..., split='train'), without streaming."
        )
    if _has_transform(dataset):
        if len(dataset) == 0:
            raise ConfigError(
                "from_huggingface(): the dataset is empty and has a transform, so its columns are "
                "unknown. Give a dataset with at least one row."
            )
        schema = Schema.of_read(_transformed(dataset, range(min(len(dataset), 2))))
        return HuggingFaceSource(dataset=dataset, schema=schema)
    described = []
    table = dataset.data
    how = dataset.format
    for name in dataset.column_names if how["output_all_columns"] else how["columns"]:
        column = table.column(name)
        dtype, shape = column_type(column.type)
        if dtype.kind in "iub" and column.null_count:
            dtype = np.dtype(object) if dtype.kind == "b" else np.dtype(np.float64)
        size = column.nbytes // max(len(column), 1) + OVERHEAD_BYTES if dtype.hasobject else 0
        described.append((name, Column(dtype=dtype, shape=shape, object_bytes=size)))
    return HuggingFaceSource(dataset=dataset, schema=Schema(tuple(described)))


def _has_transform(dataset: Any) -> bool:
    """Return whether a function of the user creates the rows."""
    return bool(dataset.format["type"] == "custom")


def _transformed(dataset: Any, rows: range) -> Batch:
    return {str(n): _stack(values) for n, values in dataset[rows.start : rows.stop].items()}


def _names_of(item: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(item, Mapping):
        return tuple(map(str, item))
    width = len(item) if isinstance(item, (tuple, list)) else 1
    if names is None:
        names = _default_names(width)
    names = list_of_names("from_torch(): columns", names)
    check_unique(names)
    if len(names) != width:
        raise ConfigError(
            f"from_torch(columns={list(names)!r}): an item of the dataset has {width} values. Give "
            f"a name for each."
        )
    return names


def _default_names(width: int) -> tuple[str, ...]:
    if width == 1:
        return ("item",)
    return ("item", "label") if width == 2 else tuple(f"item_{i}" for i in range(width))


def _as_dict(item: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    values = item if isinstance(item, (tuple, list)) else (item,)
    return dict(zip(names, values, strict=True))


def _stack(values: Sequence[Any]) -> np.ndarray:
    if isinstance(values, (list, tuple)) and values and hasattr(values[0], "detach"):
        values = [value.detach().cpu().numpy() for value in values]
    return as_column(values)
