"""Public names of a package that are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(
    package: str, home_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562). Not collective.

    A name of Ray Train that hpctrain does not have raises an error that says what to use instead.

    Parameters
    ----------
    package
        Name of the package, which says in ``__all__`` what is listed.
    home_of
        The module that each of its names is in, relative to the package: ``state.load`` is below
        it, ``.config`` beside it. ``errors:WorkerError`` is another name of that class.
    """

    def import_name(name: str) -> Any:
        if name not in home_of:
            raise _missing(package, name)
        home, _, attribute = home_of[name].partition(":")
        value = getattr(import_module(f".{home}", package), attribute or name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return list(sys.modules[package].__all__)

    return import_name, list_names


def _missing(package: str, name: str) -> Exception:
    from hpctrain.ray_names import INSTEAD

    if (instead := INSTEAD.get(package, {}).get(name)) is None:
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    from hpctrain.errors import UnavailableNameError

    # No AttributeError: `from package import name` would replace it by one without the way out.
    return UnavailableNameError(f"{package} has no {name}: {instead}")
