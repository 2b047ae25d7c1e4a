"""`PartWriter`: writes a rank's parts of checkpoints, and copies its artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.errors import CheckpointError
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.commits import Commits
from hpctrain.worker.writing import Writing
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.rundir.staging import StagedPart
    from hpctrain.worker.scratch import Scratch
    from hpctrain.worker.upload import Background, Upload


class PartWriter:
    """Writes one rank's parts of checkpoints, at once or in the background. One for an attempt.

    Parameters
    ----------
    world
        Where the rank stands.
    paths
        The run directory.
    commits
        Gets the errors of what is written in the background.
    writing
        How this rank writes what it shares with others.
    timeout_s
        Seconds that what is in the scratch directory may take to be copied.
    in_background
        Whether there may be a thread beside the training function.
    """

    def __init__(
        self,
        world: World,
        paths: RunPaths,
        *,
        commits: Commits,
        writing: Writing,
        timeout_s: float,
        in_background: bool,
    ) -> None:
        self._world = world
        self._paths = paths
        self._commits = commits
        self._writing = writing
        self._timeout_s = timeout_s
        self._in_background = in_background
        self.beside: list[Mapping[str, bytes]] = []
        """Files by name, in groups, that go into every checkpoint: preprocessor, metadata."""
        self._background: Background | None = None
        self._scratch: Scratch | None = None
        self._scratch_has_artifacts = False
        self._given: list[Path] = []

    def use_scratch(self, root: Path, *, artifacts: bool) -> None:
        """Let checkpoints, and artifacts or not, be written to the node's own disk first."""
        from hpctrain.worker.scratch import Scratch

        self._scratch = Scratch(root, run=self._paths.root, rank=self._world.world_rank)
        self._scratch_has_artifacts = artifacts

    def artifacts(self) -> Path:
        """Return the directory into which this rank writes its artifacts."""
        if self._scratch is not None and self._scratch_has_artifacts:
            return self._scratch.artifacts
        self._paths.artifacts.mkdir(DIRECTORY_MODE, exist_ok=True)
        return self._paths.artifacts

    def holds_in_scratch(self, upload: Upload) -> bool:
        """Return whether what is uploaded is in the scratch directory."""
        return self._scratch is not None and self._scratch.holds(upload.source)

    def staging(self, report: int) -> Path:
        """Return an empty directory of this rank for the checkpoint of a report.

        What it returned before is deleted, unless an upload has taken it.
        """
        from hpctrain.rundir.removal import remove_tree
        from hpctrain.rundir.staging import make_empty

        directory = self._scratch_directory(report) or self._staging_directory(report)
        while self._given:
            # The new checkpoint needs the room. Other ranks may be in the directory above.
            remove_tree(self._given.pop())
        make_empty(directory)
        self._given.append(directory)
        return directory

    def take(self, upload: Upload) -> Upload:
        """Return an upload as it is done, which has what `staging` returned for itself now."""
        if self._given:
            source = upload.source.resolve()
            given = [(one, one.resolve()) for one in self._given]
            self._given = [
                one
                for one, path in given
                if not (path.is_relative_to(source) or source.is_relative_to(path))
            ]
        return upload.from_scratch() if self.holds_in_scratch(upload) else upload

    @contextmanager
    def shared_staging(self, report: int, *, is_made: Callable[[], bool]) -> Iterator[Path]:
        """Give where files go to that have other names than those of all other ranks.

        Rank 0 makes it, before the collective: a rank that writes afterwards finds it, without a
        call of its own.

        Parameters
        ----------
        report
            Of the checkpoint.
        is_made
            Whether the report has been made. It is asked at the end: without a report the directory
            is removed.
        """
        scratch, shared = self._scratch_directory(report), self._shared_directory(report)
        is_ours = scratch is None and self._world.world_rank == 0
        if is_ours:
            # What stands in the way is an error of the report, where all ranks learn of it.
            with suppress(OSError):
                make_directory(shared, below=self._paths.checkpoints)
        try:
            yield scratch or shared
        finally:
            if is_ours and not is_made():
                for directory in (shared, shared.parent):
                    with suppress(OSError):
                        directory.rmdir()

    def stage(self, report: int, upload: Upload) -> StagedPart:
        """Write this rank's part of the checkpoint of a report.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
        from hpctrain.rundir.staging import make_below, make_present

        own, shared = self._staging_directory(report), self._shared_directory(report)
        try:
            if self._world.world_rank == 0 and upload.source == shared:
                make_below(shared, make_present)
            with self._writing.slot():
                part = upload.stage(
                    own,
                    shared=shared,
                    paths=self._paths,
                    beside=self.beside,
                    bulk=self._writing.bulk,
                )
            return replace(part, validation=upload.validation)
        except BaseException as error:
            self.drop(upload)
            if upload.writer is not None:
                upload.writer.discard()
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(
                f"rank {self._world.world_rank} could not write its part of the checkpoint of "
                f"report {report} to {own.parent}: {error.strerror or error}. The last complete "
                f"checkpoint is {self._commits.newest[1] or 'none'}; free space, or choose another "
                f"storage_path."
            ) from error

    def stage_in_time(self, report: int, upload: Upload) -> StagedPart:
        """Write this rank's part as `stage` does, and give up on a filesystem that hangs.

        Raises
        ------
        CheckpointError
            If it cannot be written, or not in time.
        """
        if not self.holds_in_scratch(upload):
            return self.stage(report, upload)
        # In the background, where a call that hangs in a parallel filesystem can be abandoned.
        done: list[StagedPart | BaseException] = []

        def stage() -> None:
            try:
                done.append(self.stage(report, upload))
            except BaseException as error:
                done.append(error)

        self.begin_in_background(stage)
        self._await_background(f"its part of the checkpoint of report {report}")
        (part,) = done
        if isinstance(part, BaseException):
            raise part
        return part

    def drop(self, upload: Upload) -> None:
        """Delete what will be in no checkpoint, if it is in the scratch: it needs the room."""
        if self.holds_in_scratch(upload):
            upload.delete_source()

    def copy_artifacts(self) -> None:
        """Begin to copy the artifacts that are in the scratch directory, if there are any."""
        scratch = self._scratch
        if scratch is None or not self._scratch_has_artifacts:
            return

        def copy() -> None:
            try:
                scratch.copy_artifacts(self._paths.artifacts, self._writing.bulk)
            except (OSError, CheckpointError) as error:
                # A state's file among them may be changed while it is copied.
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                self._commits.fail(
                    CheckpointError(
                        f"rank {self._world.world_rank} could not copy its artifacts to "
                        f"{self._paths.artifacts}: {reason.rstrip('.')}."
                    )
                )

        self.begin_in_background(copy)

    def begin_in_background(self, job: Callable[[], None]) -> None:
        """Do a job after those that were given before; without a thread, do it now."""
        if self._background is None:
            from hpctrain.worker.upload import Background

            self._background = Background(threaded=self._in_background, on_error=self._commits.fail)
        self._background.submit(job)

    def finish(self) -> None:
        """Wait until what was begun in the background has ended.

        Raises
        ------
        CheckpointError
            If it takes too long.
        """
        if self._background is not None:
            self._await_background("what was written to the scratch directory")

    def close(self) -> None:
        """Delete what is left in the scratch directory."""
        if self._scratch is not None:
            self._scratch.remove()

    def _await_background(self, what: str) -> None:
        assert self._background is not None
        if not self._background.wait(self._timeout_s):
            raise CheckpointError(
                f"rank {self._world.world_rank} could not copy {what} to {self._paths.root} within "
                f"{self._timeout_s:.0f} s. SyncConfig(sync_timeout=...) sets how long to wait."
            )

    def _scratch_directory(self, report: int) -> Path | None:
        return None if self._scratch is None else self._scratch.checkpoint(report)

    def _shared_directory(self, report: int) -> Path:
        from hpctrain.rundir.staging import shared_directory

        return shared_directory(self._paths.checkpoints, attempt=self._world.attempt, report=report)

    def _staging_directory(self, report: int) -> Path:
        from hpctrain.rundir.staging import staging_directory

        return staging_directory(
            self._paths.checkpoints,
            attempt=self._world.attempt,
            report=report,
            rank=self._world.world_rank,
        )
