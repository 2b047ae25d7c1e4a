"""Arguments of `hpctrain.data.Dataset.aggregate`, with Ray Data's names: Arrow computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hpctrain.lazy_names import at_first_use

__all__ = ["ColumnAggregate", "Count", "CountDistinct", "Max", "Mean", "Min", "Std", "Sum"]

__getattr__, _ = at_first_use(__name__, {})


@dataclass(frozen=True)
class ColumnAggregate:
    """An aggregate of a column; its value has the name ``sum(x)`` or `alias_name`."""

    on: str
    """The column."""
    ignore_nulls: bool = True
    """Whether to skip missing values. Otherwise one of them makes the result missing."""
    alias_name: str | None = None
    """Name of the value."""

    word: ClassVar[str]
    function: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the names, and the delta degrees of freedom."""
        from hpctrain.data.arguments import integer, one_name

        kind = type(self).__name__
        # Whether an aggregate needs a column is checked with the others of its call.
        for name in ("on", "alias_name"):
            if (value := getattr(self, name)) is not None:
                one_name(f"{kind}({name}=...)", value)
        if hasattr(self, "ddof"):
            integer(f"{kind}(ddof=...)", self.ddof, at_least=0)

    def for_columns(self) -> Any:
        """Return it as an `Aggregate`, which the operations compute. Not collective."""
        from hpctrain.data.operations.aggregates import Aggregate

        return Aggregate(
            function=self.function,
            column=self.on,
            name=self.alias_name or f"{self.word}({self.on or ''})",
            skip_missing=self.ignore_nulls,
            ddof=getattr(self, "ddof", 1),
        )


class Sum(ColumnAggregate):
    """The sum."""

    word, function = "sum", "sum"


class Mean(ColumnAggregate):
    """The mean."""

    word, function = "mean", "mean"


class Min(ColumnAggregate):
    """The smallest value."""

    word, function = "min", "min"


class Max(ColumnAggregate):
    """The largest value."""

    word, function = "max", "max"


class CountDistinct(ColumnAggregate):
    """The number of different values."""

    word, function = "count_distinct", "count_distinct"


@dataclass(frozen=True)
class Std(ColumnAggregate):
    """The standard deviation; NaN for a single row."""

    word, function = "std", "stddev"

    on: str
    """The column."""
    ddof: int = 1
    """Delta degrees of freedom: the divisor is the number of rows minus this."""
    ignore_nulls: bool = True
    """Whether to skip missing values. Otherwise one of them makes the result missing."""
    alias_name: str | None = None
    """Name of the value."""


@dataclass(frozen=True)
class Count(ColumnAggregate):
    """The number of rows, or of the values of a column."""

    word: ClassVar[str] = "count"

    on: str | None = None  # type: ignore[assignment]
    """The column; None counts rows."""
    ignore_nulls: bool = False
    """Whether to leave missing values out of the count."""
    alias_name: str | None = None
    """Name of the value."""

    @property
    def function(self) -> str:  # type: ignore[override]
        """Arrow's name."""
        return "count_all" if self.on is None else "count"
