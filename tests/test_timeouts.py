"""Every timeout is a row of one table."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.timeout_settings import SETTINGS, SettingRow
from hpctrain.timeouts import TIMEOUTS, Timeout

PACKAGE = Path(timeouts.__file__).parent
# Their seconds are of a scene that they play, and no user waits for them.
LEFT_OUT = ("testing", "timeouts.py")
KEYWORDS = re.compile(r"timeout(_s)?|patience_s")
NAMED = re.compile(r"``([\w.]+)\((\w+)=\.\.\.\)``")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not set(path.relative_to(PACKAGE).parts) & set(LEFT_OUT):
            yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def has_seconds(value: ast.expr) -> bool:
    """Return whether a value is a number of seconds, other than 0, or a constant of its module."""
    if isinstance(value, ast.IfExp):
        return has_seconds(value.body) or has_seconds(value.orelse)
    if isinstance(value, ast.Name):
        # What is looked at again and again is no timeout.
        return value.id.isupper() and not value.id.endswith("_INTERVAL_S")
    return (
        isinstance(value, ast.Constant)
        and isinstance(value.value, (int, float))
        and value.value > 0
    )


def test_a_row_is_named_as_its_constant() -> None:
    for name, row in vars(timeouts).items():
        if isinstance(row, Timeout):
            assert name == f"{row.name.upper()}_S"
            assert row.waits_for
            assert row.then
    assert not [name for name, n in Counter(row.name for row in TIMEOUTS).items() if n > 1]


def test_no_module_has_a_timeout_of_its_own() -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                found += [f"{path}: {n}" for n in names if re.search(r"TIMEOUT|PATIENCE", n)]
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    value = keyword.value
                    if KEYWORDS.fullmatch(keyword.arg or "") and has_seconds(value):
                        found.append(f"{path}:{node.lineno}: {ast.unparse(keyword)}")
    assert not found


def test_a_message_about_a_wait_names_its_row_or_its_setting() -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                # f"... within {timeout_s:.0f} s ..."; timeouts.describe() has its own unit.
                shown = ast.unparse(node)
                has_waited = re.search(r"\b(within|waited) \{([^{}]+)\} s\b", shown)
                if has_waited and not re.search(r"=\.\.\.\)|--\w+ sets", shown):
                    found.append(f"{path}: {has_waited[0]}")
    assert not found


def test_every_row_is_used() -> None:
    used = {
        node.attr
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "timeouts"
    }
    assert {f"{row.name.upper()}_S" for row in TIMEOUTS} - used == set()


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.field)
def test_a_setting_is_a_field(row: SettingRow) -> None:
    module, _, path = row.field.partition(":")
    owner, _, name = path.partition(".")
    config = pytest.importorskip(module.partition(".")[0]) and import_module(module)
    assert name in {field.name for field in fields(getattr(config, owner))}
    assert row.shown == f"{owner}({name}=...)"


def public(name: str) -> Any:
    """Return what a user writes so: of hpctrain, its collectives or its torch."""
    owner, _, method = name.partition(".")
    for module in ("hpctrain", "hpctrain.collective", "hpctrain.torch"):
        if hasattr(found := import_module(module), owner):
            return getattr(getattr(found, owner), method) if method else getattr(found, owner)
    raise AssertionError(f"{name} is not public")


@pytest.mark.parametrize(
    ("row", "setting"), [(row, found) for row in TIMEOUTS for found in NAMED.findall(row.setting)]
)
def test_what_changes_a_row_is_a_parameter_of_its_own(
    row: Timeout, setting: tuple[str, str]
) -> None:
    name, argument = setting
    parameter = inspect.signature(public(name)).parameters.get(argument)
    # In **others it would be taken for something else.
    assert parameter is not None, f"{row.name}: {name} has no {argument}"


def test_what_changes_a_row_is_written_as_a_call() -> None:
    assert [row.name for row in TIMEOUTS if row.setting and not NAMED.match(row.setting)] == []


def test_an_error_names_the_row() -> None:
    assert timeouts.describe(timeouts.QUEUE_S) == "10 s (timeout queue)"
    assert timeouts.describe(7200) == "7200 s"


def test_a_timeout_is_a_number_elsewhere() -> None:
    assert timeouts.QUEUE_S == 10.0
    assert type(pickle.loads(pickle.dumps(timeouts.QUEUE_S))) is float
