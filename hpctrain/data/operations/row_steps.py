"""Steps that call a function with each row, and those that change columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpctrain.data.batch import Batch, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.conform import empty
from hpctrain.data.formats import BatchFormat, as_column, rows_of, to_format
from hpctrain.data.operations.call import Call
from hpctrain.data.operations.items import batch_of_rows
from hpctrain.data.schema import Schema, check_columns, check_unique
from hpctrain.data.steps import read_only
from hpctrain.errors import ConfigError


class Seen:
    """The columns that a step has returned, for a batch without rows."""

    def __init__(self) -> None:
        self.schema: Schema | None = None

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        """Pickle without the columns."""
        return Seen, ()

    def __eq__(self, other: object) -> bool:
        """Return whether it is of the same class: the columns depend on the step and its input."""
        return isinstance(other, Seen)

    def __hash__(self) -> int:
        """Return a number that is the same for all."""
        return hash(Seen)


@dataclass(frozen=True)
class MapRows:
    """Makes a row of each row, or any number of them."""

    call: Call
    is_flat: bool = False
    """Whether the function returns a list of rows."""
    seen: Seen = field(default_factory=Seen, repr=False)

    @property
    def keeps_rows(self) -> bool:
        """Whether a row is made of each row."""
        return not self.is_flat

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows that result from a batch. Not collective."""
        made: list[Any] = []
        # An empty batch constructs no class.
        call = self.call.bound() if num_rows(batch) else self.call
        for row in rows_of(plain(batch)):
            result = call(row)
            if self.is_flat:
                made += self._several(result)
            else:
                made.append(result)
        for row in made:
            if not isinstance(row, Mapping):
                raise ConfigError(
                    f"{self.call.name}() returned a {type(row).__name__} for a row. Return a dict "
                    f"of values by column{', or a list of them' if self.is_flat else ''}."
                )
        if not made:
            return empty(self.seen.schema) if self.seen.schema else {}
        batch = batch_of_rows(made)
        self.seen.schema = Schema.of(batch)
        return batch

    def _several(self, result: Any) -> Iterable[Any]:
        if isinstance(result, (str, bytes, Mapping)) or not np.iterable(result):
            raise ConfigError(
                f"flat_map({self.call.name}): the function returned a {type(result).__name__} for "
                f"a row. Return a list of rows, which may be empty."
            )
        return list(result)


@dataclass(frozen=True)
class FilterRows:
    """Keeps rows for which a function of a row returns true."""

    call: Call
    keeps_rows: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows that are kept. Not collective."""
        call = self.call.bound() if num_rows(batch) else self.call
        answers = map(call, rows_of(plain(batch)))
        wanted = [one if one is True or one is False else self._wants(one) for one in answers]
        mask = np.array(wanted, dtype=bool)
        return {name: array[mask] for name, array in batch.items()}

    def _wants(self, wanted: Any) -> bool:
        if np.ndim(wanted) or wanted is None:
            raise ConfigError(
                f"filter({self.call.name}): the function takes a row, and returned "
                f"{'None' if wanted is None else f'{np.size(wanted)} values'}. Return a bool, or "
                f'give batch_format="numpy" for a function of a whole batch.'
            )
        return bool(wanted)


@dataclass(frozen=True)
class AddColumn:
    """Adds a column that a function computes from a batch."""

    column: str
    call: Call
    batch_format: BatchFormat
    keeps_rows: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the column. Not collective."""
        made = self.call(to_format(read_only(batch), self.batch_format))
        rows = num_rows(batch)
        array = as_column([made] * rows if np.ndim(made) == 0 else made)
        if len(array) != rows:
            raise ConfigError(
                f"add_column({self.column!r}): the function returned {len(array)} values for a "
                f"batch of {rows} rows. Return one for each row."
            )
        return {**batch, self.column: array}


@dataclass(frozen=True)
class Rename:
    """Gives columns other names."""

    names: Mapping[str, str] | Sequence[str]
    """New names by old ones, or of all columns in order."""
    keeps_rows: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with other names. Not collective."""
        return dict(zip(self.renamed(list(batch)), batch.values(), strict=True))

    def renamed(self, columns: Sequence[str]) -> list[str]:
        """Return the names that columns get.

        Not collective.

        Raises
        ------
        ConfigError
            If one does not exist, or two would have the same name.
        """
        if isinstance(self.names, Mapping):
            if columns:
                check_columns(self.names, columns)
            new = [self.names.get(name, name) for name in columns]
        elif len(self.names) != len(columns) and columns:
            raise ConfigError(
                f"rename_columns({list(self.names)!r}): the dataset has {len(columns)} columns, "
                f"{', '.join(map(repr, columns))}. Give a name for each, or a dict of some."
            )
        else:
            new = list(self.names)[: len(columns)]
        check_unique(new)
        return new
