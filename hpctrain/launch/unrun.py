"""What of a script does not run because it ends at its first wait for a run.

Nothing of the user's is called: the source is read from where each frame stands, and names are
looked up in the frames, which still have their values.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, FunctionType, MappingProxyType, ModuleType
from typing import Any

# By name: a script without a prediction has not imported the second.
_STARTERS = (
    "hpctrain.trainer.BaseTrainer",
    "hpctrain.predict.batch_predictor.BatchPredictor",
)
_METHODS = ("fit", "submit", "predict")
_NOT_THE_USERS = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        str(Path(__file__).parents[1]),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    )
)
_BLOCKS = ("body", "orelse", "finalbody")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
Names = Mapping[str, Any]


def find_unrun(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Return the calls that start a run and are not reached, as ``file:line: code``.

    Not collective. A call that a loop repeats counts too: whether the loop had another pass cannot
    be known without running it.

    Parameters
    ----------
    frames
        Where the script ends: frames and their lines, outermost first.
    """
    found: dict[str, None] = {}
    for frame, line in frames:
        path = frame.f_code.co_filename
        if _is_the_users(path):
            names = {**frame.f_globals, **frame.f_locals}
            search = _Search(path)
            for node in _remaining(search.tree, line, search, names):
                found.update(dict.fromkeys(search.starts_in(node, names)))
    return list(found)


class _Search:
    """Looks for calls that start a run in nodes of one file, and in functions that these call."""

    def __init__(self, path: str, seen: set[Any] | None = None) -> None:
        self.path = path
        self._seen = set() if seen is None else seen
        try:
            self.tree = ast.parse("".join(linecache.getlines(path)))
        except SyntaxError:  # not a file of Python, as in a notebook
            self.tree = ast.Module(body=[], type_ignores=[])
        self._assigned = _assignments(self.tree)

    def starts_in(self, node: ast.AST, names: Names) -> Iterator[str]:
        """Return where runs are started in a node, and below what it calls."""
        for call in () if isinstance(node, _FUNCTIONS) else _calls(node):
            function = call.func
            if (
                isinstance(function, ast.Attribute)
                and function.attr in _METHODS
                and self._is_starter(function.value, names)
            ):
                line = linecache.getline(self.path, call.lineno).strip()
                yield f"{os.path.relpath(self.path)}:{call.lineno}: {line}"
                continue
            called = _look_up(function, names)
            if isinstance(called, FunctionType) and called not in self._seen:
                yield from self._starts_in_function(called)

    def _starts_in_function(self, function: FunctionType) -> Iterator[str]:
        self._seen.add(function)
        path = function.__code__.co_filename
        if not _is_the_users(path):
            return
        search = _Search(path, self._seen)
        for node in ast.walk(search.tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node.name == function.__name__
                and node.lineno <= function.__code__.co_firstlineno + len(node.decorator_list)
                and function.__code__.co_firstlineno <= node.lineno
            ):
                closure = inspect.getclosurevars(function).nonlocals
                for statement in node.body:
                    yield from search.starts_in(statement, {**function.__globals__, **closure})

    def _is_starter(self, node: ast.expr, names: Names, depth: int = 0) -> bool:
        """Return whether an expression is a trainer or a batch predictor, as far as it is known."""
        if depth > 8:
            return False
        value = _look_up(node, names)
        if _is_starter_class(type(value)):
            return True
        if isinstance(node, ast.Call):
            # Of the class, or of a method of it such as restore().
            of = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            if any(_is_starter_class(_look_up(part, names)) for part in (node.func, of)):
                return True
            made = _look_up(node.func, names)
            return isinstance(made, FunctionType) and self._makes_starter(made)
        if isinstance(node, ast.Name):
            return any(
                self._is_starter(origin, names, depth + 1) or _holds_starter(origin, names)
                for origin in self._assigned.get(node.id, ())
            )
        return False

    def _makes_starter(self, function: FunctionType) -> bool:
        names = function.__code__.co_names
        return _is_the_users(function.__code__.co_filename) and any(
            _is_starter_class(function.__globals__.get(name)) for name in names
        )


def _remaining(tree: ast.Module, line: int, search: _Search, names: Names) -> list[ast.AST]:
    """Return what a frame that stands in a line would have run after it."""
    remaining: list[ast.AST] = []
    body: Sequence[ast.stmt] = tree.body
    while True:
        here = next((s for s in body if _first_line(s) <= line <= (s.end_lineno or 0)), None)
        if here is None:
            return remaining
        blocks = [(name, getattr(here, name, None) or []) for name in _BLOCKS]
        handlers = [("handlers", handler.body) for handler in getattr(here, "handlers", [])]
        cases = [("cases", case.body) for case in getattr(here, "cases", [])]
        inner = next(
            (
                (name, block)
                for name, block in (*blocks, *handlers, *cases)
                if block and _first_line(block[0]) <= line <= (block[-1].end_lineno or 0)
            ),
            None,
        )
        if isinstance(here, _FUNCTIONS) and inner is not None:
            # What follows is another frame's.
            remaining, body = [], inner[1]
            continue
        remaining += body[body.index(here) + 1 :]
        if inner is None:
            remaining += _rest_of_statement(here, line, search, names)
            return remaining
        name, body_below = inner
        if isinstance(here, (ast.For, ast.AsyncFor, ast.While)) and name == "body":
            remaining += [*here.body, *here.orelse]
        if isinstance(here, ast.Try) and name == "body":
            # A `finally` has run by now.
            remaining += here.orelse
        body = body_below


def _rest_of_statement(
    here: ast.stmt, line: int, search: _Search, names: Names
) -> Iterator[ast.AST]:
    """Return what of the statement itself follows: its blocks, passes of a comprehension."""
    if isinstance(here, _FUNCTIONS):
        return
    for name in _BLOCKS:
        yield from getattr(here, name, None) or []
    for node in ast.walk(here):
        if isinstance(node, _COMPREHENSIONS) and node.lineno <= line <= (node.end_lineno or 0):
            yield node
            return
    calls = list(_calls(here)) if not hasattr(here, "body") else []
    # Each with a search of its own, which looks into a function once.
    starts = [c for c in calls if any(_Search(search.path).starts_in(_Only(c), names))]
    if len(starts) > 1:
        yield _Only(starts[-1])


class _Only(ast.Expr):
    """A call, without those in its arguments."""

    def __init__(self, call: ast.Call) -> None:
        super().__init__(value=ast.Call(func=call.func, args=[], keywords=[]))
        ast.copy_location(self.value, call)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Return the calls in a node, without the bodies of functions that it only defines."""
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _FUNCTIONS):
            yield from _calls(child)


def _assignments(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return what is assigned to each name anywhere in a file; of a loop, what it goes over."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
    return found


def _holds_starter(node: ast.expr, names: Names) -> bool:
    value = _look_up(node, names)
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, (list, tuple, set)) and any(_is_starter_class(type(v)) for v in value)


def _is_starter_class(value: Any) -> bool:
    return isinstance(value, type) and any(
        f"{base.__module__}.{base.__qualname__}" in _STARTERS for base in value.__mro__
    )


def _look_up(node: ast.expr, names: Names) -> Any:
    """Return the value of a name, or of an attribute that is simply stored; else None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    base = _look_up(node.value, names)
    if isinstance(base, ModuleType):
        is_ours = base.__name__.partition(".")[0] == "hpctrain"
        return getattr(base, node.attr, None) if is_ours else vars(base).get(node.attr)
    stored = getattr(base, "__dict__", None)
    return stored.get(node.attr) if isinstance(stored, (dict, MappingProxyType)) else None


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _is_the_users(path: str) -> bool:
    return os.path.isfile(path) and not os.path.realpath(path).startswith(_NOT_THE_USERS)
