"""Sums, means and so on of columns: computed by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, integer, one_or_more_names
from hpctrain.data.optional import require
from hpctrain.data.schema import check_columns, check_unique
from hpctrain.errors import ConfigError

_OF_ARROW = {"std": "stddev"}


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """An aggregate of one column, or of none."""

    function: str
    """Arrow's name, such as "sum", "stddev" and "count_all"."""
    column: str | None
    name: str
    """Name of the result."""
    skip_missing: bool = True
    ddof: int = 1

    def for_arrow(self) -> tuple[Any, str, Any]:
        """Return the argument for ``Table.group_by().aggregate()``. Not collective."""
        compute = require("pyarrow.compute", to="to aggregate")
        if self.column is None:
            return [], self.function, None
        if self.function == "stddev":
            options = compute.VarianceOptions(
                ddof=self.ddof, skip_nulls=self.skip_missing, min_count=1
            )
        elif self.function.startswith("count"):
            options = compute.CountOptions(mode="only_valid" if self.skip_missing else "all")
        else:
            options = compute.ScalarAggregateOptions(skip_nulls=self.skip_missing, min_count=1)
        return self.column, self.function, options


def aggregate(table: Any, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Any:
    """Return a table of a row for each group, with the keys first.

    Not collective. One thread, so that sums of floats are the same on every rank.

    Raises
    ------
    ConfigError
        If Arrow cannot compute one.
    """
    pyarrow = require("pyarrow", to="to aggregate")
    # Positions, not names: a column of the dataset may be called "sum(x)".
    names = {name: str(at) for at, name in enumerate(table.column_names)}
    numbered = table.rename_columns(list(names.values()))
    asked = [one.for_arrow() for one in aggregates]
    asked = [(names[c] if isinstance(c, str) else c, f, options) for c, f, options in asked]
    try:
        groups = numbered.group_by([names[key] for key in keys], use_threads=False)
        found = groups.aggregate(asked)
    except pyarrow.ArrowException as error:
        wanted = ", ".join(one.name for one in aggregates)
        raise ConfigError(
            f"{wanted}: {error}. Aggregates are of columns of numbers, times, bools or, for min "
            f"and max, texts: name them with on=[...]."
        ) from error
    # Some versions of pyarrow return the keys before the aggregates, others after them.
    kept = [names[key] for key in keys]
    # By position: two aggregates of the same kind and column have the same name.
    made = [at for at, name in enumerate(found.column_names) if name not in kept]
    return pyarrow.table(
        [*(found[name] for name in kept), *(found.column(at) for at in made)],
        names=[*keys, *(one.name for one in aggregates)],
    )


def aggregates_of(
    what: str,
    on: str | Sequence[str] | None,
    columns: Sequence[str],
    keys: Sequence[str],
    *,
    ignore_nulls: bool,
    ddof: int,
) -> list[Aggregate]:
    """Return an aggregate of each of some columns, by default of all but the keys.

    Not collective.

    Raises
    ------
    ConfigError
        If a column does not exist, or there is none.
    """
    ddof = integer(f"{what}(): ddof", ddof, at_least=0)
    if on is None:
        wanted = [name for name in columns if name not in keys]
    else:
        wanted = list(one_or_more_names(f"{what}(): on", on))
        check_columns(wanted, columns)
    if not wanted:
        raise ConfigError(
            f"{what}(): there is no column to aggregate beside the keys {list(keys)!r}. The "
            f"dataset has {list(columns)!r}: name one with on=[...]."
        )
    return [
        Aggregate(
            function=_OF_ARROW.get(what, what),
            column=name,
            name=f"{what}({name})",
            skip_missing=flag("ignore_nulls", ignore_nulls),
            ddof=ddof,
        )
        for name in wanted
    ]


def check_aggregates(
    given: Sequence[Any], columns: Sequence[str], keys: Sequence[str]
) -> list[Aggregate]:
    """Return the aggregates that were given to ``aggregate()``.

    Not collective.

    Raises
    ------
    ConfigError
        If there is none, one is not of `hpctrain.data.aggregate`, a column does not exist, or two
        have the same name.
    """
    for one in given:
        if not hasattr(one, "for_columns") or isinstance(one, type):
            raise ConfigError(
                f"aggregate({shown(one)}): this is not an aggregate of hpctrain.data.aggregate, "
                f"such as Sum('x'). For a function of your own use groupby().map_groups(function)."
            )
    found = [one.for_columns() for one in given]
    if not found:
        raise ConfigError("aggregate(): no aggregate was given. Name one, such as Sum('x').")
    for one in found:
        if one.column is None and one.function != "count_all":
            raise ConfigError(f"aggregate(): {one.name} needs a column. Name it with on='x'.")
    check_columns(dict.fromkeys(one.column for one in found if one.column), columns)
    check_unique([*keys, *(one.name for one in found)])
    return found
