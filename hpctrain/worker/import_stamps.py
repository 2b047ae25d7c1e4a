"""`ImportStamps`: by what is seen later that what a process has imported is out of date."""

from __future__ import annotations

import os
from collections.abc import Iterable


def stamp(path: str) -> int:
    """Return when a file or a directory was changed, in nanoseconds; 0 if it is gone.

    Not collective.
    """
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


class ImportStamps:
    """Times of change of what a process imports, from before the first import on.

    Parameters
    ----------
    places
        Directories of installed packages. What is installed there while it imports counts.
    """

    def __init__(self, places: Iterable[str]) -> None:
        self._places = {place: stamp(place) for place in places}
        self._without_cache = {place for place in self._places if not _has_cache(place)}

    def after(self, files: Iterable[str]) -> dict[str, int]:
        """Return the times by path: of the places, of what was imported, and its directories.

        Not collective.

        Parameters
        ----------
        files
            Those of the modules that were imported.
        """
        files = list(files)
        found = {path: stamp(path) for path in (*map(os.path.dirname, files), *files)}
        found |= self._places
        # An import is the first of all there, and changes its directory, only once.
        made = {place for place in self._without_cache if _has_cache(place)}
        return found | {place: stamp(place) for place in made}


def _has_cache(place: str) -> bool:
    return os.path.isdir(os.path.join(place, "__pycache__"))
