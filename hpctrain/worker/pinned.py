"""Imports the user's modules as they were when ``fit()`` was called."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from os.path import dirname
from types import CodeType, ModuleType
from typing import Any

from hpctrain.log import log
from hpctrain.plan.modules import SourceFile, unpack_sources


def pin_sources(packed: bytes, *, says_changes: bool = True) -> None:
    """Have this process import modules as they were. Not collective.

    A file that is unchanged is imported as ever, with Python's caches. One that was edited, moved
    or deleted meanwhile is imported from what the run keeps, under its old name and path. Modules
    that the run does not keep are found on ``sys.path``.

    Parameters
    ----------
    packed
        What `hpctrain.plan.modules.pack_sources` returned.
    says_changes
        Whether this process logs which files have changed.
    """
    if packed:
        sys.meta_path.insert(0, _PinnedFinder(packed, says_changes=says_changes))


class _PinnedFinder:
    """Finds modules that have changed; opens what the run keeps at the first one."""

    def __init__(self, packed: bytes, *, says_changes: bool) -> None:
        self._packed = packed
        self._says_changes = says_changes
        self._sources: Mapping[str, SourceFile] | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that has changed; None leaves it to the others."""
        if self._sources is None:
            self._sources = unpack_sources(self._packed)
        source = self._sources.get(name)
        if source is None or source.is_unchanged():
            return None
        if self._says_changes:
            log(
                f"{source.path} has changed since fit(): the run imports it as it was "
                f"(snapshot=True)."
            )
        return spec_from_file_location(
            name,
            source.path,
            loader=_PinnedLoader(name, source),
            submodule_search_locations=[dirname(source.path)] if source.is_package else None,
        )


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
        path = self._source.path
        text = self.get_source(module.__name__) or ""
        # Without a time it is taken for one that cannot change.
        entry: Any = (len(text), None, text.splitlines(keepends=True), path)
        linecache.cache[path] = entry
        super().exec_module(module)
