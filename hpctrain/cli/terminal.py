"""The width of the terminal, and texts that fit it."""

from __future__ import annotations

import sys

_NARROWEST = 40


def width_of_output() -> int | None:
    """Return the width of a table; None if it goes to a program, which needs it whole.

    Not collective. As in `ps`, an exported ``COLUMNS`` counts.
    """
    import shutil

    from hpctrain import environ

    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    width = environ.variable("COLUMNS") or ""
    return int(width) if width.isdecimal() else None


def wrap(key: str, value: str, width: int | None) -> list[str]:
    """Return a value behind its key, indented by its width from the second line on. Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program, which is given the lines as they are.
    """
    import textwrap

    indent = " " * len(key)
    lines = value.splitlines() or [""]
    if width is not None:
        # A path or a word of a command that is longer stays in one piece, to be copied.
        paragraphs = textwrap.TextWrapper(
            max(width, _NARROWEST) - len(key), break_on_hyphens=False, break_long_words=False
        )
        # An empty line stays one: it is what sets a traceback apart.
        lines = [line for text in lines for line in paragraphs.wrap(text) or [""]]
    return [
        f"{indent if number else key}{line}" if line else key.rstrip() * (number == 0)
        for number, line in enumerate(lines)
    ]
