"""Several commands for one start of the ranks, which takes longer than a small one of them."""

from __future__ import annotations

from collections.abc import Sequence

THEN = "then"


def join_commands(commands: Sequence[Sequence[object]]) -> list[str]:
    """Return the words of all commands, with `THEN` between two of them."""
    words: list[str] = []
    for command in commands:
        words += [*([THEN] if words else []), *map(str, command)]
    return words


def split_commands(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each command."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == THEN:
            commands.append([])
        else:
            commands[-1].append(word)
    return commands
