"""Public names of a package that are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

_LIKENESS_OF_TYPOS = 0.85


def at_first_use(
    package: str, home_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562). Not collective.

    A name of Ray Train that hpctrain does not have raises an error that names a replacement, and so
    does a misspelled name of the package.

    Parameters
    ----------
    package
        Name of the package, whose ``__all__`` lists the names.
    home_of
        The module that each of its names is in, relative to the package: ``state.load`` is below
        it, ``.config`` beside it. ``errors:WorkerError`` is another name of that class.
    """

    def import_name(name: str) -> Any:
        if name not in home_of:
            if _is_submodule(package, name):
                raise AttributeError(f"module {package!r} has not imported {name!r}")
            raise _missing(package, name, list_names())
        home, _, attribute = home_of[name].partition(":")
        value = getattr(import_module(f".{home}", package), attribute or name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return list(sys.modules[package].__all__)

    return import_name, list_names


def _is_submodule(package: str, name: str) -> bool:
    """Return whether a name is that of a module, which ``from package import`` imports next."""
    # A module that is no package has none, and getattr() would ask for it here again.
    places = vars(sys.modules[package]).get("__path__")
    return places is not None and PathFinder.find_spec(f"{package}.{name}", places) is not None


def _missing(package: str, name: str, names: Iterable[str]) -> Exception:
    from hpctrain.errors import UnavailableNameError
    from hpctrain.ray_names import INSTEAD

    # No AttributeError: `from package import name` would replace it by one without the advice.
    if (instead := INSTEAD.get(package, {}).get(name)) is not None:
        return UnavailableNameError(f"{package} has no {name}: {instead}")
    # Tools query modules for their own names, such as pytest's setup_module: no suggestion for
    # those.
    import difflib

    if close := difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS_OF_TYPOS):
        return UnavailableNameError(f"{package} has no {name}. Did you mean {close[0]!r}?")
    return AttributeError(f"module {package!r} has no attribute {name!r}")
