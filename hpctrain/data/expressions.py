"""Expressions of columns, in Ray Data's names: they are those of ``pyarrow.compute``."""

from __future__ import annotations

from typing import Any

from hpctrain.lazy_names import at_first_use

__all__ = ["col", "lit"]

__getattr__, _ = at_first_use(__name__, {})


def col(name: str) -> Any:
    """Return the expression of a column: ``pyarrow.compute.field``.

    Not collective. `hpctrain.data.Dataset.filter` and `hpctrain.data.Dataset.with_column` take it,
    and expressions built from it with ``+ - * /``, comparisons, ``& | ~`` and its methods, such as
    ``isin()``, ``is_null()`` and ``cast()``.

    Parameters
    ----------
    name
        Name of the column.
    """
    from hpctrain.data.optional import require

    return require("pyarrow.compute", to="for expressions").field(name)


def lit(value: Any) -> Any:
    """Return the expression of a value that is the same in each row. Not collective."""
    from hpctrain.data.optional import require

    return require("pyarrow.compute", to="for expressions").scalar(value)
