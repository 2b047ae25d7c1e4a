"""The executor's side of checkpoints: commit, list, verify, keep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME, VALIDATION_NAME
from hpctrain.checkpoint_lock import hold_for_deletion
from hpctrain.errors import CheckpointError
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir.files import (
    exchange_directory,
    fsync_directory,
    write_atomic,
    write_unseen,
)
from hpctrain.rundir.known_manifests import KnownManifests
from hpctrain.rundir.manifest import (
    DamagedManifestError,
    Manifest,
    encode_manifest,
    encode_validation,
    read_manifest,
)
from hpctrain.rundir.merged_parts import merge_parts
from hpctrain.rundir.removal import remove_tree
from hpctrain.rundir.retention import kept_names
from hpctrain.rundir.staging import DAMAGED, REPLACED, StagedPart, commit_directory, default_name
from hpctrain.rundir.verify import TRY_AGAIN, verify_files

if TYPE_CHECKING:
    from hpctrain.checkpoint_config import CheckpointConfig

_SCANNED_BYTES = 64 * 2**20
"""Of a state that are verified before ranks start: more would keep them waiting."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One directory of ``checkpoints/``: a checkpoint, or what is left of one."""

    path: Path
    manifest: Manifest | None
    problem: str | None
    """Why it is not a checkpoint; None if it is one."""
    is_damaged: bool = False
    """Whether it never will be one: its manifest was read, and is not valid."""


class CheckpointStore:
    """The checkpoints of one run. One writer (the executor), any number of readers.

    Parameters
    ----------
    directory
        ``checkpoints/`` of the run directory.
    delete
        Deletes a directory that has no reader any more, now or in the background. It may be given
        one again whose deletion has not ended.
    """

    def __init__(self, directory: Path, *, delete: Callable[[Path], None] = remove_tree) -> None:
        self._directory = directory
        self._delete = delete
        self._known = KnownManifests()

    def commit(
        self,
        *,
        attempt: int,
        report: int,
        world_size: int,
        metrics: Mapping[str, Any],
        parts: Mapping[int, StagedPart],
        validation: Mapping[str, Any] | None = None,
    ) -> tuple[Checkpoint, list[str]]:
        """Make one checkpoint out of what ranks staged.

        Not collective. It becomes visible by one rename, with its manifest inside, after its files
        are on disk. A predecessor of the same name stays until then.

        Parameters
        ----------
        parts
            What each contributing rank staged and made durable, by world rank. A file that several
            ranks staged is kept from the lowest of them, and so are the name and the versions. A
            rank may have staged nothing, but not all of them.
        validation
            How it is to be validated, as of `Manifest`; None if it is not.

        Returns
        -------
        tuple
            The checkpoint, and the names of files that ranks staged with different content.

        Raises
        ------
        CheckpointError
            If another report's checkpoint has the name, or no rank staged a file.
        """
        # Who gives no file has no part in it.
        first = parts[min((r for r in parts if parts[r].files), default=min(parts))]
        name = default_name(report) if first.name is None else first.name
        self._refuse_taken(name, report)
        if not any(part.files for part in parts.values()):
            raise CheckpointError(
                "its directory holds no file. Save into it before report(), or report without a "
                "checkpoint."
            )
        merged = merge_parts(self._directory, parts, attempt=attempt, report=report)
        manifest = Manifest(
            name=name,
            report=report,
            attempt=attempt,
            world_size=world_size,
            metrics=metrics,
            files=merged.files,
            created_at=time.time(),
            versions=first.versions,
            validation=validation,
        )
        write_unseen(merged.directory / MANIFEST_NAME, encode_manifest(manifest))
        merged.fsync_folders()
        target = self._directory / name
        self._publish(merged.directory, target)
        merged.remove_emptied()
        return Checkpoint(target), list(merged.conflicts)

    def end_validation(self, manifest: Manifest, metrics: Mapping[str, Any]) -> bool:
        """Write down that a pending validation has ended. Not collective.

        Parameters
        ----------
        manifest
            Of the checkpoint, as it was when the validation began.
        metrics
            What it gave; none if it failed. They replace metrics of the same name.

        Returns
        -------
        bool
            Whether the checkpoint is still there, and its validation pending: it may have been
            deleted, set aside or made anew by another attempt.
        """
        path = self._directory / manifest.name
        try:
            present = read_manifest(path)
        except DamagedManifestError:
            return False
        if present.validation is None or present.created_at != manifest.created_at:
            return False
        write_atomic(path / VALIDATION_NAME, encode_validation(present, metrics), durable=True)
        return True

    def abandon(self, *, attempt: int, report: int) -> None:
        """Delete what ranks staged with a report, and is not committed. Not collective."""
        directory = commit_directory(self._directory, attempt=attempt, report=report)
        remove_tree(directory)

    def entries(self) -> list[Entry]:
        """Return all checkpoints, oldest report first, and what is left of some. Not collective.

        Reads their manifests only. Of what was set aside, and of what is being made or deleted,
        there is nothing here.
        """
        return sorted(self._scan(read_manifest), key=_by_report)

    def manifests(self) -> list[Manifest]:
        """Return the manifests of all complete checkpoints, oldest first. Not collective."""
        return [entry.manifest for entry in self.entries() if entry.manifest is not None]

    def known_manifests(self) -> list[Manifest]:
        """Return what `manifests` does, without files. Not collective.

        Reads those only that it has not read before.
        """
        return [entry.manifest for entry in self._known_entries() if entry.manifest is not None]

    def _known_entries(self) -> list[Entry]:
        entries = sorted(self._scan(self._known.read), key=_by_report)
        self._known.keep_only([entry.path for entry in entries])
        return entries

    def set_aside(self) -> list[str]:
        """Return the names of what was set aside as damaged. Not collective."""
        try:
            found = sorted(entry.name for entry in os.scandir(self._directory))
        except FileNotFoundError:
            return []
        return [name for name in found if name.endswith(DAMAGED)]

    def open(self, manifest: Manifest) -> Checkpoint:
        """Return the handle on a checkpoint. Not collective."""
        return Checkpoint.from_directory(self._directory / manifest.name)

    def newest_good(
        self, *, doubtful: Collection[str] = (), check_stop: Callable[[], None] = lambda: None
    ) -> tuple[Manifest | None, list[str]]:
        """Return the newest checkpoint whose files match its manifest.

        Not collective. Reads every byte of it, but of a large state the headers only: what loads
        it verifies each block anyway. Call it before ranks start.

        Parameters
        ----------
        doubtful
            Names of checkpoints that are read in full, however large: loading them may have failed.
        check_stop
            As in `verify_files`. Nothing is set aside if it raises.

        Returns
        -------
        tuple
            Its manifest, or None; and why others were set aside (renamed to ``NAME.damaged``):
            newer ones that are damaged, and all without a manifest.

        Raises
        ------
        UnreadableError
            If one that may be the newest good one cannot be read just now. Nothing is set aside: in
            an outage that would be all of them.
        """
        # Many checkpoints of many files take long to read, and only one of them is looked for.
        entries = self._known_entries()
        for entry in entries:
            if entry.manifest is None and not entry.is_damaged:
                raise UnreadableError(entry.problem)
        damaged = {entry.path: entry.problem for entry in entries if entry.is_damaged}
        newest = None
        for path in reversed([entry.path for entry in entries if entry.manifest is not None]):
            try:
                manifest = read_manifest(path)
            except DamagedManifestError as error:
                damaged[path] = f"checkpoint {path.name}: {error} ({path / MANIFEST_NAME})."
                continue
            quick = _is_large(manifest) and manifest.name not in doubtful
            try:
                verify_files(path, manifest.files, quick=quick, check_stop=check_stop)
            except UnreadableError:
                raise
            except CheckpointError as error:
                damaged[path] = str(error)
                continue
            newest = manifest
            break
        for path in damaged:
            self._set_aside(path)
        return newest, [str(problem) for problem in damaged.values()]

    def verify(self, manifest: Manifest, *, quick: bool = False) -> None:
        """Check sizes and digests of a checkpoint's files. Not collective.

        Parameters
        ----------
        quick
            As in `verify_files`.

        Raises
        ------
        CheckpointError
            As in `verify_files`.
        """
        verify_files(self._directory / manifest.name, manifest.files, quick=quick)

    def retain(self, config: CheckpointConfig, *, protected: Collection[str] = ()) -> None:
        """Delete what `config` does not keep. Not collective.

        What is being read (`Checkpoint.as_directory`) is deleted by a later call, when it is read
        no more.

        Parameters
        ----------
        protected
            Names that stay whatever the score. The newest always stays.
        """
        if config.num_to_keep is None and config.keep_every_s is None:
            return
        manifests = self.known_manifests()
        keep = kept_names(manifests, config)
        for manifest in manifests:
            if manifest.name not in keep and manifest.name not in protected:
                self._discard(self._directory / manifest.name)

    def prepare(self) -> None:
        """Make the directory, and delete what a dead attempt left half done.

        Not collective; call while no rank runs.
        """
        if not self._directory.is_dir():
            self._directory.mkdir(DIRECTORY_MODE)
            # A checkpoint outlives a power failure only if the way to it does.
            for parent in (self._directory.parent, self._directory.parent.parent):
                fsync_directory(parent)
        for entry in list(os.scandir(self._directory)):
            if entry.name.startswith(".trash-"):
                with hold_for_deletion(Path(entry.path)) as unread:
                    if unread:
                        self._delete(Path(entry.path))
            elif entry.name.startswith(".tmp-"):
                try:
                    # Another attempt may have the number, and the name, of the one that is gone.
                    self._remove(Path(entry.path))
                except OSError:
                    # The disk may be too full for another name.
                    remove_tree(entry.path)
            elif entry.name.endswith(REPLACED):
                original = self._directory / entry.name.removesuffix(REPLACED)
                if original.exists():
                    self._discard(Path(entry.path))
                else:
                    os.rename(entry.path, original)

    def _publish(self, merged: Path, target: Path) -> None:
        """Rename a complete directory to its name; an older one there is complete until then."""
        replaced = target.with_name(target.name + REPLACED)
        if not target.exists():
            os.rename(merged, target)
            fsync_directory(self._directory)
            return
        if replaced.exists():
            # An earlier one that is still read; `prepare` deletes it once it is not.
            _hide(replaced)
        # In between, `entries` and `prepare` know the predecessor by its other name.
        exchange_directory(merged, target, aside=replaced)
        fsync_directory(self._directory)
        self._discard(replaced)

    def _refuse_taken(self, name: str, report: int) -> None:
        with suppress(DamagedManifestError):
            other = read_manifest(self._directory / name)
            if other.report != report:
                raise CheckpointError(
                    f"the name {name} belongs to the checkpoint of report {other.report}. Give "
                    f"each its own checkpoint_dir_name, or none."
                )

    def _scan(self, read: Callable[[Path], Manifest]) -> Iterator[Entry]:
        try:
            names = {e.name for e in os.scandir(self._directory) if e.is_dir()}
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(".") or name.endswith(DAMAGED):
                continue
            if name.endswith(REPLACED) and name.removesuffix(REPLACED) in names:
                continue
            path = self._directory / name
            try:
                yield Entry(path=path, manifest=read(path), problem=None)
            except UnreadableError as error:
                yield Entry(
                    path=path, manifest=None, problem=f"checkpoint {name}: {error} {TRY_AGAIN}"
                )
            except DamagedManifestError as error:
                # Deleted meanwhile, if it is gone.
                if path.exists():
                    problem = f"checkpoint {name}: {error} ({path / MANIFEST_NAME})."
                    yield Entry(path=path, manifest=None, problem=problem, is_damaged=True)

    def _set_aside(self, path: Path) -> None:
        damaged = path.with_name(path.name + DAMAGED)
        if damaged.exists():
            self._remove(damaged)
        os.rename(path, damaged)
        fsync_directory(self._directory)

    def _discard(self, path: Path) -> None:
        with hold_for_deletion(path) as unread:
            if unread:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        self._delete(_hide(path))


def _hide(path: Path) -> Path:
    """Rename a directory for its deletion; return its new path.

    Readers list by name: it is gone for them at once, whatever the deletion then takes.
    """
    trash = path.with_name(f".trash-{path.name}-{time.monotonic_ns()}")
    os.rename(path, trash)
    return trash


def _by_report(entry: Entry) -> tuple[int, int]:
    manifest = entry.manifest
    return (-1, 0) if manifest is None else (manifest.report, manifest.attempt)


def _is_large(manifest: Manifest) -> bool:
    return sum(f.size for f in manifest.files if f.kind == "header") > _SCANNED_BYTES
