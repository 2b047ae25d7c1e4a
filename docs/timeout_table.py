"""The tables of the page on timeouts, from ``hpctrain.timeouts`` and ``timeout_settings``."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

from hpctrain.timeout_settings import SETTINGS, SettingRow
from hpctrain.timeouts import TIMEOUTS

_HEAD = ".. list-table::\n   :header-rows: 1\n   :widths: {widths}\n\n"


def render_settings() -> str:
    """Return the table of the timeouts that a configuration sets."""
    rows = [
        (f"``{row.shown}``", _default(row), row.waits_for, row.then)
        for row in sorted(SETTINGS, key=lambda row: row.shown)
    ]
    return _table(("setting", "default", "what is waited for", "what its end does"), rows)


def render_timeouts() -> str:
    """Return the table of the timeouts with fixed numbers of seconds."""
    rows = [
        (f"``{row.name}``", f"{row:g} s", row.waits_for, row.then, row.setting)
        for row in sorted(TIMEOUTS, key=lambda row: row.name)
    ]
    head = ("name", "seconds", "what is waited for", "what its end does", "what changes it")
    return _table(head, rows)


def _default(row: SettingRow) -> str:
    module, _, path = row.field.partition(":")
    owner, _, name = path.partition(".")
    (field,) = (f for f in fields(getattr(import_module(module), owner)) if f.name == name)
    return "none" if field.default is None else f"{field.default:g} s"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = " ".join(["18", "10", *["30"] * (len(head) - 2)])
    lines = [_HEAD.format(widths=widths)]
    for row in (head, *rows):
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}\n" for i, cell in enumerate(row)]
    return "".join(lines)
