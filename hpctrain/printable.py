"""`show_controls`: text of others for a terminal, which obeys what it is sent."""

from __future__ import annotations

import re

# Not printable, and harmless: spaces, and what joins parts of one sign.
_KEPT = "\n\t\xa0\u200c\u200d\u3000"
# Colours, which harm nobody.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")


def show_controls(text: str, *, keep_colours: bool = False) -> str:
    r"""Return a text whose control characters are shown, and not obeyed. Pure.

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
