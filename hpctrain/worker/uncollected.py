"""Imports without a look for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside, and never what is there at the end. Not collective.

    For imports: Python's collector looks at all objects again and again while a library makes
    nothing but objects that stay. Of an import of torch that is a quarter, for less than one MiB.
    What stays is not written to by a collection in a forked process either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
