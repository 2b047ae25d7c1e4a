"""`KnownManifests`: manifests that are read once, as those of many files take long to read."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from hpctrain.checkpoint_files import MANIFEST_NAME, VALIDATION_NAME
from hpctrain.rundir.manifest import Manifest, read_manifest

_Version = tuple[int, int, int, int]


class KnownManifests:
    """What manifests hold but for their files, kept until they change on disk."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[list[_Version | None], Manifest]] = {}

    def read(self, directory: Path) -> Manifest:
        """Return the manifest of a checkpoint's directory, without its files. Not collective.

        Raises
        ------
        DamagedManifestError, CheckpointError
            As `read_manifest`.
        """
        # Before it is read: what changes meanwhile is read again.
        versions = [_version(directory / name) for name in (MANIFEST_NAME, VALIDATION_NAME)]
        known = self._known.get(directory)
        if known is not None and versions[0] is not None and known[0] == versions:
            return known[1]
        manifest = replace(read_manifest(directory), files=())
        self._known[directory] = versions, manifest
        return manifest

    def keep_only(self, directories: Collection[Path]) -> None:
        """Forget all others, which are deleted. Not collective."""
        self._known = {path: self._known[path] for path in directories if path in self._known}


def _version(path: Path) -> _Version | None:
    """Return what differs once a file is replaced; None if it cannot be found."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
