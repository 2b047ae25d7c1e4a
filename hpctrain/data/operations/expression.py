"""Expressions: text is parsed by Python; Arrow computes all of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.checks import check_text, shown
from hpctrain.data.arrow_batches import from_arrow
from hpctrain.data.batch import Batch, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.operations.arrow import to_arrow_with_missing
from hpctrain.data.optional import require
from hpctrain.data.schema import check_columns
from hpctrain.errors import ConfigError

_COMPARISONS = {
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
}
_ARITHMETIC = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}


@dataclass(frozen=True)
class FilterExpression:
    """Keeps rows for which an expression is true."""

    expression: Any
    """Text, or an expression of ``pyarrow.compute``."""
    keeps_rows: bool = False

    def __post_init__(self) -> None:
        """Check a text before any row is read."""
        if isinstance(self.expression, str):
            parse(self.expression)

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows that are kept. Not collective."""
        if not batch:
            return batch
        pyarrow = require("pyarrow", to="to filter by an expression")
        expression, names = self.expression, list(batch)
        if isinstance(expression, str):
            expression, names = parse(expression)
            check_columns(names, list(batch))
        table = to_arrow_with_missing({name: plain(batch)[name] for name in names})
        # Filter row numbers, not rows: Arrow would change the types of the columns.
        at = pyarrow.table({**{n: table[n] for n in names}, "": np.arange(num_rows(batch))})
        try:
            kept = at.filter(expression)[""].to_numpy()
        except (pyarrow.ArrowException, TypeError) as error:
            raise ConfigError(f"filter(expr={self.expression!r}): {error}.") from error
        return {name: array[kept] for name, array in batch.items()}


@dataclass(frozen=True)
class WithColumns:
    """Adds columns that are computed from others."""

    expressions: Mapping[str, Any]
    """Texts, or expressions of ``pyarrow.compute``, by the names of the columns."""
    keeps_rows: bool = True

    def __post_init__(self) -> None:
        """Check the expressions before any row is read."""
        compute = require("pyarrow.compute", to="to compute columns")
        if not self.expressions:
            raise ConfigError(
                "with_columns(): no expression was given. Give a dict, such as {'y': 'x * 2'}."
            )
        for name, expression in self.expressions.items():
            check_text("with_column(): the name", name)
            if isinstance(expression, str):
                parse(expression, of=f"with_column({name!r}, {expression!r})")
            elif not isinstance(expression, compute.Expression):
                raise ConfigError(
                    f"with_column({name!r}): {shown(expression)} is not an expression. Give a text "
                    f"such as 'x * 2', or hpctrain.data.expressions.col('x') * 2; add_column() "
                    f"takes a function."
                )

    def names(self) -> list[str]:
        """Return the columns that texts name; Arrow checks those of other expressions."""
        texts = [text for text in self.expressions.values() if isinstance(text, str)]
        return list(dict.fromkeys(name for text in texts for name in parse(text)[1]))

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the columns. Not collective."""
        if not batch:
            return batch
        pyarrow = require("pyarrow", to="to compute columns")
        acero = require("pyarrow.acero", to="to compute columns")
        are_texts = all(isinstance(one, str) for one in self.expressions.values())
        names = self.names() if are_texts else list(batch)
        check_columns(self.names(), list(batch))
        table = to_arrow_with_missing({name: plain(batch)[name] for name in names})
        # Gives the table its number of rows if no column is named.
        table = table.append_column("", pyarrow.array(np.arange(num_rows(batch))))
        wanted = [parse(e)[0] if isinstance(e, str) else e for e in self.expressions.values()]
        plan = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions(wanted, list(self.expressions))),
        ]
        try:
            found = acero.Declaration.from_sequence(plan).to_table(use_threads=False)
        except (pyarrow.ArrowException, TypeError) as error:
            asked = ", ".join(f"{name!r}: {e}" for name, e in self.expressions.items())
            raise ConfigError(f"with_column({asked}): {error}.") from error
        return {**batch, **from_arrow(found)}


def parse(text: str, *, of: str | None = None) -> tuple[Any, list[str]]:
    """Return an expression of Arrow, and the columns in it.

    Not collective. The text is parsed, never executed as Python code.

    Parameters
    ----------
    text
        The expression.
    of
        The call that has the expression, for messages; None is a filter.

    Raises
    ------
    ConfigError
        If it has anything but comparisons, ``in``, ``and``, ``or``, ``not``, numbers, texts, names
        and arithmetic.

    Examples
    --------
    >>> parse("x > 1 and not y in [2, 3]")[1]
    ['x', 'y']
    """
    call = of or f"filter(expr={text!r})"
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{call}: the text is not an expression: {error}. Write one such as 'x > 1 and y < 2'."
        ) from error
    parsed = _Parser(call)
    expression = parsed.value(tree.body)
    if not hasattr(expression, "is_null"):
        what = "Compute with a column, as in 'x * 2'" if of else "Compare a column, as in 'x > 1'"
        raise ConfigError(f"{call}: the expression names no column. {what}.")
    return expression, list(dict.fromkeys(parsed.names))


class _Parser:
    def __init__(self, call: str) -> None:
        self._call = call
        self._compute = require("pyarrow.compute", to="to filter by an expression")
        self.names: list[str] = []

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            self.names.append(node.id)
            return self._compute.field(node.id)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.BoolOp):
            values = [self.value(item) for item in node.values]
            found = values[0]
            for other in values[1:]:
                found = found & other if isinstance(node.op, ast.And) else found | other
            return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.value(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.value(node.operand)
            return self._compute.negate(operand) if hasattr(operand, "is_null") else -operand
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            function = getattr(self._compute, _ARITHMETIC[type(node.op)])
            return function(*map(self._expression, (node.left, node.right)))
        if isinstance(node, ast.Compare):
            return self._compared(node)
        raise ConfigError(
            f"{self._call}: {ast.unparse(node)!r} is not supported. Use "
            f"comparisons, in, and, or, not and arithmetic of columns, or give a function."
        )

    def _expression(self, node: ast.expr) -> Any:
        value = self.value(node)
        return value if hasattr(value, "is_null") else self._compute.scalar(value)

    def _compared(self, node: ast.Compare) -> Any:
        found: Any = None
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, (ast.In, ast.NotIn)):
                one = self._expression(left).isin(self.value(right))
                one = ~one if isinstance(operator, ast.NotIn) else one
            elif isinstance(operator, (ast.Is, ast.IsNot)):
                if not (isinstance(right, ast.Constant) and right.value is None):
                    raise ConfigError(
                        f"{self._call}: {ast.unparse(node)!r} is not supported: 'is' finds missing "
                        f"values only. Use 'x is None', or == for other values."
                    )
                one = self._expression(left).is_null()
                one = ~one if isinstance(operator, ast.IsNot) else one
            else:
                name = _COMPARISONS[type(operator)]
                one = getattr(self._expression(left), name)(self._expression(right))
            found = one if found is None else found & one
        return found
