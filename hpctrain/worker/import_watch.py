"""`ImportWatch`: which of some modules a training function has led to, as it would have anyway."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

from hpctrain import environ


class ImportWatch:
    """Finds out which modules ranks of the next attempt may have from their fork server.

    Libraries read variables when they are imported, and a training function may set some before:
    what it imports after that is left out.

    Parameters
    ----------
    names
        The modules in question.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._awaited = set(names) - sys.modules.keys()
        self._found: set[str] = set()
        self._returned: set[str] = set()
        self._variables: dict[str, str] | None = _variables()
        if self._awaited:
            # It finds nothing: the next ones are asked.
            sys.meta_path.insert(0, self)

    def enter_backend(self) -> None:
        """Take note that the backend is set up now. Not collective."""
        if _variables() != self._variables:
            self._variables = None

    def enter_training(self) -> None:
        """Take note that this has been done, which may have set variables. Not collective."""
        if self._variables is not None:
            self._variables = _variables()

    def take_new(self) -> list[str]:
        """Return the modules that were imported since the last call. Not collective."""
        if len(self._found) == len(self._returned):
            return []
        # One whose import has failed is gone again.
        new = sorted(name for name in self._found - self._returned if name in sys.modules)
        self._returned.update(new)
        return new

    def close(self) -> None:
        """Look at no further import. Not collective."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Take note of an import that begins; find nothing, as another finder is to. Any thread."""
        if name in self._awaited:
            self._awaited.discard(name)
            # Another thread may change the environment meanwhile.
            with suppress(RuntimeError, KeyError):
                if self._variables is not None and self._variables == _variables():
                    self._found.add(name)
        return None


def _variables() -> dict[str, str]:
    variables = environ.environment()
    return {name: value for name, value in variables.items() if not environ.is_of_launcher(name)}
