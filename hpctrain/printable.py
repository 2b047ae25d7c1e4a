"""Text of others: control characters for a terminal, and messages of their exceptions."""

from __future__ import annotations

import re

# Not printable, and harmless: spaces, and joiners of composed characters.
_KEPT = "\n\t\xa0\u200c\u200d\u3000"
# Colours, which are harmless.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")


def show_controls(text: str, *, keep_colours: bool = False) -> str:
    r"""Return a text with its control characters escaped. Pure.

    Not collective. Newlines and tabs stay.

    Parameters
    ----------
    keep_colours
        Whether the sequences that set colours stay, too.

    Examples
    --------
    >>> print(show_controls("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    if text.isprintable():
        return text
    if keep_colours:
        parts = _COLOUR.split(text)
        parts[::2] = map(_escape, parts[::2])
        return "".join(parts)
    return _escape(text)


def text_of(error: BaseException) -> str:
    """Return the message of an exception; its class may be one of a user, and fail. Pure.

    Examples
    --------
    >>> text_of(KeyError("loss"))
    "'loss'"
    """
    try:
        return str(error)
    except Exception as failed:
        return f"(no message: {type(failed).__name__} in its __str__)"


def describe_error(error: BaseException) -> str:
    """Return the class and the message of an exception. Pure.

    Examples
    --------
    >>> describe_error(ValueError("no such column"))
    'ValueError: no such column'
    """
    return f"{type(error).__name__}: {text_of(error)}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text
    )
