"""The executor's side of checkpoints: commit, list, verify, keep."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.checkpoint import MANIFEST_NAME, Checkpoint
from hpctrain.config import CheckpointConfig
from hpctrain.errors import CheckpointError
from hpctrain.rundir import FORMAT
from hpctrain.rundir.files import fsync_directory, write_atomic
from hpctrain.rundir.staging import StagedFile, commit_directory, digest_file

_NAME = re.compile(r"\d{6,}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What makes a checkpoint complete."""

    name: str
    report: int
    """Number of the report that it came with."""
    attempt: int
    world_size: int
    metrics: Mapping[str, Any]
    """Rank 0's metrics of the report."""
    files: tuple[StagedFile, ...]
    created_at: float


class CheckpointStore:
    """The checkpoints of one run. One writer (the executor), any number of readers.

    Parameters
    ----------
    directory
        ``checkpoints/`` of the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(
        self,
        *,
        attempt: int,
        report: int,
        world_size: int,
        metrics: Mapping[str, Any],
        parts: Mapping[int, Sequence[StagedFile]],
    ) -> tuple[Checkpoint, list[str]]:
        """Make one checkpoint out of what ranks staged.

        Not collective. It becomes visible by one rename, with its manifest inside, after its files
        are on disk.

        Parameters
        ----------
        parts
            What each contributing rank staged and made durable, by world rank. A file that several
            ranks staged is kept from the lowest of them.

        Returns
        -------
        tuple
            The checkpoint, and the names of files that ranks staged with different content.
        """
        name = f"{report:06d}"
        temporary = commit_directory(self._directory, attempt=attempt, report=report)
        lowest = min(parts)
        merged = temporary / f"rank-{lowest:05d}"
        files = {file.path: file for file in parts[lowest]}
        conflicts = []
        for rank in sorted(set(parts) - {lowest}):
            for file in parts[rank]:
                if file.path in files:
                    if file.digest != files[file.path].digest:
                        conflicts.append(file.path)
                    continue
                files[file.path] = file
                target = merged / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(temporary / f"rank-{rank:05d}" / file.path, target)
        manifest = Manifest(
            name=name,
            report=report,
            attempt=attempt,
            world_size=world_size,
            metrics=metrics,
            files=tuple(files[path] for path in sorted(files)),
            created_at=time.time(),
        )
        write_atomic(merged / MANIFEST_NAME, _dump(manifest), durable=True)
        for folder, _, _ in os.walk(merged):
            fsync_directory(Path(folder))
        target = self._directory / name
        # A damaged or unfinished predecessor of the same number (an earlier attempt that got
        # further than the checkpoint this one resumed from) gives way.
        if target.exists():
            self._discard(target)
        os.rename(merged, target)
        fsync_directory(self._directory)
        shutil.rmtree(temporary, ignore_errors=True)
        return Checkpoint(target), conflicts

    def manifests(self) -> list[Manifest]:
        """Return the manifests of all complete checkpoints, oldest first. Not collective."""
        try:
            names = sorted(
                (e.name for e in os.scandir(self._directory) if _NAME.fullmatch(e.name)), key=int
            )
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            try:
                found.append(_load((self._directory / name / MANIFEST_NAME).read_bytes()))
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                continue
        return found

    def open(self, manifest: Manifest) -> Checkpoint:
        """Return the handle on a checkpoint. Not collective."""
        return Checkpoint(self._directory / manifest.name)

    def newest_good(self) -> tuple[Manifest | None, list[str]]:
        """Return the newest checkpoint whose files are what its manifest says.

        Not collective. Reads every byte of it.

        Returns
        -------
        tuple
            Its manifest, or None; and why each newer one was set aside (renamed to
            ``NAME.damaged``).
        """
        complaints = []
        for manifest in reversed(self.manifests()):
            try:
                self.verify(manifest)
            except CheckpointError as error:
                complaints.append(str(error))
                damaged = self._directory / f"{manifest.name}.damaged"
                if damaged.exists():
                    self._discard(damaged)
                os.rename(self._directory / manifest.name, damaged)
                continue
            return manifest, complaints
        return None, complaints

    def verify(self, manifest: Manifest) -> None:
        """Check sizes and digests of a checkpoint's files. Not collective.

        Raises
        ------
        CheckpointError
            If a file is missing or differs.
        """
        for file in manifest.files:
            path = self._directory / manifest.name / file.path
            try:
                size, digest = digest_file(path)
            except FileNotFoundError as error:
                raise CheckpointError(f"checkpoint {manifest.name} has lost {path}.") from error
            if (size, digest) != (file.size, file.digest):
                raise CheckpointError(
                    f"checkpoint {manifest.name}: {path} has {size} bytes and digest {digest}, but "
                    f"{file.size} bytes and digest {file.digest} were committed."
                )

    def retain(self, config: CheckpointConfig, *, protected: Iterable[str] = ()) -> None:
        """Delete what `config` does not keep. Not collective.

        Parameters
        ----------
        protected
            Names that stay whatever the score. The newest always stays.
        """
        if config.num_to_keep is None:
            return
        manifests = self.manifests()
        ranked = rank_checkpoints(manifests, config)
        keep = {manifest.name for manifest in ranked[: config.num_to_keep]} | set(protected)
        keep.update(manifest.name for manifest in manifests[-1:])
        for manifest in manifests:
            if manifest.name not in keep:
                self._discard(self._directory / manifest.name)

    def remove_unfinished(self) -> None:
        """Delete what a dead attempt left half done. Not collective; call before ranks start."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(self._directory):
            if entry.name.startswith((".tmp-", ".trash-")):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        # Readers list by name: it is gone for them at once, whatever the deletion then takes.
        trash = path.with_name(f".trash-{path.name}-{time.monotonic_ns()}")
        os.rename(path, trash)
        shutil.rmtree(trash, ignore_errors=True)


def rank_checkpoints(manifests: Sequence[Manifest], config: CheckpointConfig) -> list[Manifest]:
    """Return the manifests, best first. Not collective.

    Without a score attribute the newest is best. A missing or NaN score is the worst.
    """
    if config.checkpoint_score_attribute is None:
        return sorted(manifests, key=lambda m: -m.report)
    sign = 1 if config.checkpoint_score_order == "max" else -1
    path = config.checkpoint_score_attribute.split("/")

    def key(manifest: Manifest) -> tuple[bool, float, int]:
        value: Any = manifest.metrics
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        bad = not isinstance(value, (int, float)) or math.isnan(value)
        return bad, 0.0 if bad else -sign * value, -manifest.report

    return sorted(manifests, key=key)


def _dump(manifest: Manifest) -> bytes:
    content = {
        "format": FORMAT,
        "name": manifest.name,
        "report": manifest.report,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "metrics": dict(manifest.metrics),
        "digest": "xxh3_128",
        "files": [[file.path, file.size, file.digest] for file in manifest.files],
        "created_at": manifest.created_at,
    }
    return json.dumps(content, indent=1).encode()


def _load(content: bytes) -> Manifest:
    loaded = json.loads(content)
    if loaded["format"] > FORMAT:
        raise CheckpointError(
            f"checkpoint {loaded['name']} has format {loaded['format']}, and this hpctrain reads "
            f"up to {FORMAT}. Use a newer hpctrain."
        )
    return Manifest(
        name=loaded["name"],
        report=loaded["report"],
        attempt=loaded["attempt"],
        world_size=loaded["world_size"],
        metrics=loaded["metrics"],
        files=tuple(StagedFile(*file) for file in loaded["files"]),
        created_at=loaded["created_at"],
    )
