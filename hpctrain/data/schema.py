"""`Schema`: names, types and shapes of the columns of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import items_of
from hpctrain.data.categories import categories_of
from hpctrain.data.object_bytes import object_bytes
from hpctrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Column:
    """Type and shape of one row of a column."""

    dtype: np.dtype
    """NumPy's type; ``object`` for strings and for values without a NumPy type."""
    shape: tuple[int, ...] = ()
    """Shape of one row: empty for a number, ``(28, 28)`` for an image."""
    object_bytes: int = field(default=0, compare=False, repr=False)
    """About how many bytes an object takes besides its pointer, measured on the first rows; 0 for
    numbers, and for objects that are in memory already."""

    def __str__(self) -> str:
        """Return type and shape, in short form."""
        if categories_of(self.dtype) is not None:
            return "category"
        return f"{self.dtype}{list(self.shape) if self.shape else ''}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, about so for objects."""
        size = self.dtype.itemsize + self.object_bytes
        return int(size * np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Schema(Mapping[str, Column]):
    """Columns by name, in order.

    Examples
    --------
    >>> schema = Schema.of({"x": np.zeros((5, 28), "f4"), "y": np.zeros(5, "i8")})
    >>> print(schema)
    x: float32[28], y: int64
    >>> schema["x"].shape
    (28,)
    """

    items_: tuple[tuple[str, Column], ...]

    @staticmethod
    def of(batch: Mapping[str, np.ndarray]) -> Schema:
        """Return the schema of arrays that have a row per element. Not collective."""
        return Schema(
            tuple((name, Column(dtype=a.dtype, shape=a.shape[1:])) for name, a in batch.items())
        )

    @staticmethod
    def of_read(batch: Mapping[str, np.ndarray]) -> Schema:
        """Return the schema of rows that are read when they are needed. Not collective."""
        return Schema(
            tuple(
                (name, replace(column, object_bytes=object_bytes(batch[name])))
                for name, column in Schema.of(batch).items()
            )
        )

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        # The first of columns of the same name, until `check_unique` refuses them.
        return dict(reversed(self.items_))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the rest."""
        return {"items_": self.items_}

    def __getitem__(self, name: str) -> Column:
        """Return a column."""
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.items_)

    def __str__(self) -> str:
        """Return names and types in one line."""
        return ", ".join(f"{name}: {column}" for name, column in self.items_)

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self)

    @property
    def objects(self) -> frozenset[str]:
        """Names of the columns that hold objects."""
        return frozenset(name for name, column in self.items_ if column.dtype.hasobject)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all columns in memory."""
        return sum(column.row_bytes for column in self.values())

    def select(self, names: Sequence[str] | None) -> Schema:
        """Return the schema of some columns, in the order given; None is all.

        Not collective.

        Raises
        ------
        ConfigError
            If there is no such column; the message names those that exist.
        """
        if names is None:
            return self
        check_columns(names, self.names)
        return Schema(tuple((name, self[name]) for name in names))


def check_columns(wanted: Iterable[str], existing: Sequence[str]) -> None:
    """Check that columns exist, and that none is named twice.

    Not collective.

    Raises
    ------
    ConfigError
        The message names the columns that exist.
    """
    if isinstance(wanted, str):
        raise ConfigError(f"columns={wanted!r} is a text, not a list of names. Give [{wanted!r}].")
    names = list(wanted) if isinstance(wanted, Mapping) else items_of(wanted)
    if names is None:
        raise ConfigError(
            f"columns={shown(wanted)} is not a list of names. Give one, such as ['x', 'y']."
        )
    known = set(existing)
    if missing := [name for name in names if not isinstance(name, str) or name not in known]:
        raise ConfigError(
            f"there is no column {', '.join(map(repr, missing))}. The dataset has "
            f"{', '.join(map(repr, existing)) or 'no columns'}."
        )
    check_unique(names)


def check_unique(names: Iterable[str]) -> None:
    """Check that no two columns have the same name.

    Not collective.

    Raises
    ------
    ConfigError
        The message names them.
    """
    counted = list(names)
    if len(set(counted)) < len(counted):
        twice = [name for name, count in Counter(counted).items() if count > 1]
        raise ConfigError(
            f"more than one column is called {', '.join(map(repr, twice))}. Give each a name of "
            f"its own."
        )


def check_same_schema(first: Schema, first_path: str, other: Schema, other_path: str) -> None:
    """Check that a file has the columns of the first file.

    Not collective. The order of columns may differ.

    Raises
    ------
    ConfigError
        The message names the columns that differ.
    """
    if first == other:
        return
    unlike = [
        f"{name!r} is {first.get(name, 'missing')} and {other.get(name, 'missing')}"
        for name in dict.fromkeys((*first, *other))
        if first.get(name) != other.get(name)
    ]
    if unlike:
        raise ConfigError(
            f"files of one dataset have different columns: in {first_path} and {other_path} "
            f"{'; '.join(unlike)}. Read them as separate datasets, or name the columns that they "
            f"share with columns=[...]."
        )
