"""A command that looks at the run of a script before it is launched, in place of launching it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctrain.launch.request import Submission

_look_at: Callable[[Submission], None] | None = None


def request(look_at: Callable[[Submission], None]) -> None:
    """Have the next ``fit()`` call a function, and end the script. Not collective."""
    global _look_at
    _look_at = look_at


def requested() -> Callable[[Submission], None] | None:
    """Return the function of `request`; None if runs are to be launched. Not collective."""
    return _look_at
