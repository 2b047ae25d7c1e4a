"""Imports the user's modules as they were when ``fit()`` was called."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from hpctrain.log import log
from hpctrain.plan.sources import SourceFile, unpack_sources

# As in hpctrain.pack.header, which would load more than ranks need.
_MANIFEST = "hpctrain-pack.json"
_pinned = b""


def pin_sources(packed: bytes, *, says_changes: bool = True) -> None:
    """Have this process import modules as they were. Not collective.

    A module that the run keeps is imported from the file that it was read from, even where another
    of the same name comes first by now: with Python's caches if the file is unchanged, else from
    what the run keeps, under its own path. In a packed environment the same file there takes its
    place. Other modules are found on ``sys.path``.

    Parameters
    ----------
    packed
        What `hpctrain.plan.sources.pack_sources` returned.
    says_changes
        Whether this process logs which files have changed.
    """
    global _pinned
    if packed:
        _pinned = packed
        finder = _PinnedFinder(unpack_sources(packed), says_changes=says_changes)
        sys.meta_path.insert(0, finder)


def pinned_sources() -> bytes:
    """Return what `pin_sources` was given here, for processes that this one starts.

    Not collective.
    """
    return _pinned


class _PinnedFinder:
    """Finds the modules that a run keeps, and the directories that they are in."""

    def __init__(self, sources: Mapping[str, SourceFile], *, says_changes: bool) -> None:
        self._sources = sources
        self._says_changes = says_changes
        self._packed = _place_of_pack()
        self._places: dict[str, list[str]] = {}
        for name, source in sources.items():
            place = os.path.dirname(source.path)
            if source.is_package:
                place = os.path.dirname(place)
            # Packages without __init__.py, which are kept by what is in them.
            while "." in name:
                name = name.rpartition(".")[0]
                if name not in sources and place not in self._places.setdefault(name, []):
                    self._places[name].append(place)
                place = os.path.dirname(place)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that the run keeps; None leaves it to the others."""
        source = self._sources.get(name)
        if source is None:
            return self._find_namespace(name, path)
        if (packed := self._find_packed(name, path, source)) is not None:
            return packed
        loader = SourceFileLoader(name, source.path)
        if not source.is_unchanged():
            loader = _PinnedLoader(name, source)
            if self._says_changes:
                log(
                    f"{source.path} has changed since fit(): the run imports it as it was "
                    f"(snapshot=True)."
                )
        places = [os.path.dirname(source.path)] if source.is_package else None
        return spec_from_file_location(
            name, source.path, loader=loader, submodule_search_locations=places
        )

    def _find_packed(
        self, name: str, path: Sequence[str] | None, source: SourceFile
    ) -> ModuleSpec | None:
        """Return how to load the file of a packed environment that holds the same."""
        if self._packed is None:
            return None
        found = PathFinder.find_spec(name, path)
        if found is None or not (found.origin or "").startswith(self._packed):
            return None
        try:
            with open(str(found.origin), "rb") as file:
                return found if file.read() == source.content else None
        except OSError:
            return None

    def _find_namespace(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return a namespace package whose directories may be gone."""
        places = self._places.get(name)
        if places is None or PathFinder.find_spec(name, path) is not None:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = list(places)
        return spec


def _place_of_pack() -> str | None:
    """Return where the packed environment is that this process runs in; None in any other one."""
    root = os.path.dirname(sys.prefix)
    return root + os.sep if os.path.exists(os.path.join(root, _MANIFEST)) else None


class _PinnedLoader(SourceFileLoader):
    def __init__(self, name: str, source: SourceFile) -> None:
        super().__init__(name, source.path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        """Return the source as it was; of another file, such as a resource, what it holds."""
        return self._source.content if path == self._source.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source: the bytecode beside the file is that of another."""
        code: CodeType = self.source_to_code(self._source.content, self._source.path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the source, and have tracebacks show its lines."""
        text = self.get_source(module.__name__) or ""
        # Without a time it is taken for one that cannot change.
        entry: Any = (len(text), None, text.splitlines(keepends=True), self._source.path)
        linecache.cache[self._source.path] = entry
        super().exec_module(module)
