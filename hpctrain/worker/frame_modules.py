"""Imports of libraries that ask which module calls them, without a look at the files of all."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def frame_modules() -> Iterator[None]:
    """Let `inspect.getmodule` know the module of a frame by its globals, inside. Not collective.

    torch asks for the module of 230 frames while it is imported, one for an operator. Python looks
    it up by the name of a file, and so at the files of all modules that there are: 11,000 of the
    18,500 times that an import of torch 2.13 asks the filesystem, and a thirtieth of its CPU time.
    """
    look_up = inspect.getmodule

    def getmodule(object: Any, _filename: str | None = None) -> ModuleType | None:
        return _module_of(object) or look_up(object, _filename)

    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = look_up


def _module_of(object: Any) -> ModuleType | None:
    """Return the module whose code a frame runs; None where that is not certain."""
    if not isinstance(object, FrameType):
        return None
    module = sys.modules.get(object.f_globals.get("__name__", ""))
    if not isinstance(module, ModuleType) or vars(module) is not object.f_globals:
        return None
    # Code of another file may be executed there.
    return module if getattr(module, "__file__", None) == object.f_code.co_filename else None
