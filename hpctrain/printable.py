"""`show_controls`: make untrusted text safe for a terminal."""

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


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text
    )
