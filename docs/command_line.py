"""What the page of the command line shows: the ``--help`` of each verb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from hpctrain.cli.main import app

_COLUMNS = 100


def render_verbs() -> str:
    """Return a section for each verb, those of groups included."""
    return "".join(
        f"{name}\n{'~' * len(name)}\n\n.. code-block:: text\n\n{_indent(text)}\n"
        for name, text in read_helps()
    )


def read_helps() -> Iterator[tuple[str, str]]:
    """Yield each verb as it is typed, and what its ``--help`` prints."""
    return _helps(typer.main.get_command(app), "hpctrain", None)


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=_COLUMNS
    )
    if not hasattr(command, "list_commands"):
        yield context.command_path, command.get_help(context)
        return
    for verb in command.list_commands(context):
        yield from _helps(command.get_command(context, verb), verb, context)


def _indent(text: str) -> str:
    return "".join(f"   {line}".rstrip() + "\n" for line in text.splitlines())
