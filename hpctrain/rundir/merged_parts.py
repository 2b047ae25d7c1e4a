"""`MergedParts`: what ranks staged for one report, moved into one directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpctrain.constants import ARCHITECTURE_NAME
from hpctrain.rundir.files import fsync_directory, make_directory
from hpctrain.rundir.removal import remove_tree
from hpctrain.rundir.staging import StagedFile, StagedPart, shared_directory, staging_directory


@dataclass(frozen=True, kw_only=True)
class MergedParts:
    """The files of all ranks in one directory, which no reader sees yet."""

    directory: Path
    """The one that all ranks share, or that of the lowest rank if none is shared."""
    files: tuple[StagedFile, ...]
    """Sorted by path."""
    conflicts: tuple[str, ...]
    """Paths that ranks staged with different content; the lowest rank's is kept."""
    emptied: frozenset[Path]
    """Directories of ranks out of which all files were moved."""

    def fsync_folders(self) -> None:
        """Write the entries of all folders to disk. Not collective."""
        folders = {folder for file in self.files for folder in (self.directory / file.path).parents}
        for folder in sorted(folders - set(self.directory.parents)):
            fsync_directory(folder)

    def remove_emptied(self) -> None:
        """Remove the emptied directories, without a scan of each. Not collective.

        Call it once `directory` was renamed.
        """
        staging = self.directory.parent
        try:
            for directory in self.emptied:
                directory.rmdir()
            staging.rmdir()
        except OSError:
            # Something is left: of a file that several ranks had, of a directory in one of them.
            remove_tree(staging)


def merge_parts(
    checkpoints: Path, parts: Mapping[int, StagedPart], *, attempt: int, report: int
) -> MergedParts:
    """Move the files of all ranks into one directory. Not collective.

    Parameters
    ----------
    checkpoints
        ``checkpoints/`` of the run directory.
    parts
        What each rank staged, by world rank; at least one has a file.
    """

    def own(rank: int) -> Path:
        return staging_directory(checkpoints, attempt=attempt, report=report, rank=rank)

    ranks = sorted(rank for rank in parts if parts[rank].files)
    merged = own(ranks[0])
    if any(part.shared for part in parts.values()):
        merged = shared_directory(checkpoints, attempt=attempt, report=report)
    files: dict[str, StagedFile] = {}
    conflicts, emptied = [], {own(rank) for rank in parts if rank not in ranks}
    for rank in ranks:
        for file in parts[rank].files:
            is_shared = file.path in parts[rank].shared
            if not is_shared and own(rank) != merged:
                emptied.add(own(rank))
            if file.path in files:
                is_other = file.digest != files[file.path].digest
                if is_other and Path(file.path).name != ARCHITECTURE_NAME:
                    conflicts.append(file.path)
                continue
            files[file.path] = file
            if not is_shared and own(rank) != merged:
                target = merged / file.path
                if target.parent != merged:
                    make_directory(target.parent, below=merged)
                # In place of a higher rank's, if that one has taken the name.
                os.rename(own(rank) / file.path, target)
    return MergedParts(
        directory=merged,
        files=tuple(files[path] for path in sorted(files)),
        conflicts=tuple(conflicts),
        emptied=frozenset(emptied),
    )
