"""One rank's part of a checkpoint, on its way into the commit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode, refuse_missing
from hpctrain.errors import ConfigError
from hpctrain.log import log_traceback
from hpctrain.own_time import wait_for
from hpctrain.rundir.bulk import Bulk
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import (
    StagedFile,
    StagedPart,
    check_name,
    make_below,
    make_empty,
    make_present,
    seal,
    versions,
)

UploadFunction = Callable[[Checkpoint, str], Checkpoint]


class PartContent(Protocol):
    """Writes a rank's part once its report has begun, in place of a directory that is filled."""

    @property
    def directory(self) -> Path:
        """Where to, of `Session.shared_staging`; rank 0 makes it for all."""

    def capture(self) -> None:
        """Copy what the training function may change after an ASYNC report."""

    def write(self) -> Sequence[StagedFile]:
        """Write the files, durably, and return all of them. In any thread.

        No other rank has files of their names.
        """

    def discard(self) -> None:
        """Let go of what was kept, as nothing will be written. In any thread."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What ``report()`` was asked to do with a checkpoint."""

    checkpoint: Checkpoint | None
    """None if a writer makes it."""
    dir_name: str | None
    mode: CheckpointUploadMode
    delete_local: bool = False
    upload_fn: UploadFunction | None = None
    writer: PartContent | None = None
    """Makes the checkpoint."""
    validation: Mapping[str, Any] | None = None
    """How the checkpoint is to be validated, as of `Manifest`; None if it is not."""

    @property
    def is_async(self) -> bool:
        """Whether it goes on in the background."""
        return self.mode is CheckpointUploadMode.ASYNC

    @property
    def source(self) -> Path:
        """The directory of this part, before it is in the commit."""
        if self.writer is not None:
            return self.writer.directory
        assert self.checkpoint is not None
        return Path(self.checkpoint.path)

    def check(self, *, report: int, paths: RunPaths) -> None:
        """Check the arguments before anything is written.

        Raises
        ------
        ConfigError
            If the name is not a valid checkpoint name, the run is in the directory, the one to
            delete is the run's own, or a value has the wrong type.
        """
        if self.writer is None and not isinstance(self.checkpoint, Checkpoint):
            raise ConfigError(
                f"report(checkpoint={self.checkpoint!r}): a Checkpoint is needed. "
                f"Checkpoint.from_directory(path) makes one of a directory."
            )
        if self.checkpoint is not None:
            refuse_missing(self.checkpoint)
        if not isinstance(self.mode, CheckpointUploadMode):
            modes = ", ".join(f"CheckpointUploadMode.{mode.name}" for mode in CheckpointUploadMode)
            raise ConfigError(f"report(checkpoint_upload_mode={self.mode!r}): one of {modes}.")
        if self.dir_name is not None:
            problem = check_name(self.dir_name, report=report)
            if problem is not None:
                raise ConfigError(f"report(checkpoint_dir_name={self.dir_name!r}): {problem}.")
        copies_all = self.writer is None and self.upload_fn is None
        if copies_all or self.delete_local:
            self._check_source(paths.checkpoints.resolve())

    def _check_source(self, checkpoints: Path) -> None:
        source = self.source.resolve()
        if _is_within(checkpoints, source):
            raise ConfigError(
                f"report(checkpoint={self.checkpoint!r}): {source} holds committed checkpoints of "
                f"this run, which are no part of the next one. Report a directory that the "
                f"run is not in."
            )
        if self.delete_local and _is_within(source, checkpoints):
            # What begins with a dot is not committed yet.
            inside = source.relative_to(checkpoints).parts
            if not inside[0].startswith("."):
                raise ConfigError(
                    f"report(delete_local_checkpoint_after_upload=True): {source} holds committed "
                    f"checkpoints. Report a directory of your own, or do not delete it."
                )

    def from_scratch(self) -> Upload:
        """Return the same for a directory of the run's own on the disk of the node."""
        uploaded = self.mode is not CheckpointUploadMode.NO_UPLOAD
        mode = self.mode if uploaded else CheckpointUploadMode.SYNC
        return replace(self, mode=mode, delete_local=True)

    def stage(
        self,
        own: Path,
        *,
        shared: Path,
        paths: RunPaths,
        beside: Sequence[Mapping[str, bytes]],
        bulk: Bulk,
    ) -> StagedPart:
        """Bring the part into the commit, and make it durable.

        Not collective.

        Parameters
        ----------
        own
            The rank's staging directory.
        shared
            That of all ranks.
        paths
            The run directory.
        beside
            Files of the run, by name, such as those of its preprocessor: each group is put beside
            the model, unless one of its files is there.
        bulk
            How files are copied.

        Raises
        ------
        OSError
            If it cannot be written.
        CheckpointError, ConfigError
            If it is not where `upload_fn` returned that it is.
        """
        source = self.source
        written: Sequence[StagedFile] = ()
        staging = SharedStaging(shared, own)
        if self.writer is not None:
            if source != shared:
                make_empty(source)
            written = self.writer.write()
            if source == shared:
                staging.paths.update({file.path: shared / file.path for file in written})
        elif self.upload_fn is not None and source != own:
            source = self._call_upload_fn(self.upload_fn, own, paths)
        if source == own:
            is_empty = bool(beside) and not any(own.iterdir())
            for files in () if is_empty else beside:
                if not any((own / name).exists() for name in files):
                    for name, content in files.items():
                        (own / name).write_bytes(content)
            return StagedPart(files=tuple(seal(own, bulk)), name=self.dir_name, versions=versions())
        if source != shared:
            if self.upload_fn is not None or self.mode is CheckpointUploadMode.NO_UPLOAD:
                staging.link(source)
            else:
                written = staging.copy(source, bulk)
        for files in beside if staging.paths else ():
            if not any(name in staging.paths for name in files):
                for name, content in files.items():
                    staging.offer(name, content)
        return StagedPart(
            files=staging.seal(bulk, written=written),
            shared=staging.shared,
            name=self.dir_name,
            versions=versions(),
        )

    def delete_source(self) -> None:
        """Delete the caller's directory if that was asked for; after the commit."""
        if self.delete_local:
            from hpctrain.rundir.removal import remove_tree

            remove_tree(self.source)

    def _call_upload_fn(self, upload_fn: UploadFunction, directory: Path, paths: RunPaths) -> Path:
        make_below(directory, make_present)
        assert self.checkpoint is not None
        uploaded: object = upload_fn(self.checkpoint, str(directory.relative_to(paths.root)))
        root = paths.root.resolve()
        if not isinstance(uploaded, Checkpoint) or root not in uploaded.path.resolve().parents:
            raise ConfigError(
                f"checkpoint_upload_fn returned {uploaded!r}. It returns a Checkpoint inside of "
                f"{paths.root}: write to get_context().get_storage() / its second argument."
            )
        refuse_missing(uploaded)
        return uploaded.path


def _is_within(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents


class Background:
    """Does one job after the other in the background.

    Parameters
    ----------
    threaded
        Whether there is a thread for it, made at first use; else jobs are done at once.
    on_error
        Is given what a job raises in the thread, which keeps no other job from being done. Unless
        it is given, the log of the rank has it.
    name
        Of the thread.
    """

    def __init__(
        self,
        *,
        threaded: bool,
        on_error: Callable[[BaseException], None] = log_traceback,
        name: str = "hpctrain-upload",
    ) -> None:
        self._threaded, self._on_error, self._name = threaded, on_error, name
        self._jobs: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Do a job after those before it. It reports its own errors; others go to `on_error`."""
        if not self._threaded:
            job()
            return
        with self._change:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._change.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all jobs are done; return whether they are."""
        with self._change:
            return wait_for(self._change, lambda: not self._jobs, timeout_s)

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._jobs))
                job = self._jobs[0]
            try:
                job()
            except BaseException as error:
                self._on_error(error)
            finally:
                # What it had is free before the next one comes.
                del job
                with self._change:
                    self._jobs.popleft()
                    self._change.notify_all()
