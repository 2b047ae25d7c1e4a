"""`WorkerSession`: what the worker of an elastic run tells and asks its rank."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode, ReportedCheckpoint
from hpctrain.errors import ConfigError
from hpctrain.horovod.connections import GlooConnections
from hpctrain.loop_time import LoopTime
from hpctrain.plan import spec
from hpctrain.rundir.paths import RunPaths
from hpctrain.temporary_checkpoint import temporary_prefix

if TYPE_CHECKING:
    from hpctrain.worker.upload import Upload
    from hpctrain.world import World


class WorkerSession:
    """What a `hpctrain.worker.report.Session` is to a rank, for its worker: it asks the rank.

    Parameters
    ----------
    connection
        To the rank.
    world
        Where the rank stands.
    paths
        The run directory.
    reports
        Number of the report that the attempt resumed from.
    """

    def __init__(
        self, connection: Connection, *, world: World, paths: RunPaths, reports: int
    ) -> None:
        self._connection = connection
        self._asks = Lock()
        """An answer is that to the last question, whichever thread of the user's asked it."""
        self._paths = paths
        self.world = world
        self.reports = reports
        """Number of the last report; goes back with the state of the training."""
        self.is_counted = False
        """Whether an elastic state takes `reports` back to its last commit."""
        self.connections = GlooConnections()
        """Of Horovod in this worker."""
        self.loop_time = LoopTime()
        """What the worker waits for; the rank does not learn it."""
        self._staging: Path | None = None
        self._spare: TemporaryDirectory[str] | None = None

    def report(
        self,
        metrics: Mapping[str, Any],
        upload: Upload | None = None,
        *,
        validation: Mapping[str, Any] | None = None,
    ) -> None:
        """Report metrics, and a checkpoint with them or not."""
        if not self.is_counted:
            raise ConfigError(
                "report() in an elastic run needs a state that counts reports: after a worker was "
                "replaced, all go on from the last commit. Make the state with "
                "hpctrain.horovod.elastic_state(model=..., optimizer=...) in place of "
                "hvd.elastic.TorchState(...), before the first report."
            )
        number = self.reports + 1
        if upload is not None:
            upload = self._staged(number, upload)
        self._ask("report", number, dict(metrics), upload, validation)
        self.reports = number

    def heartbeat(self) -> None:
        """Say that this worker makes progress."""
        self._ask("heartbeat")

    def should_stop(self) -> bool:
        """Return whether all workers stop after the last report."""
        return bool(self._ask("should_stop", self.reports))

    @property
    def leave(self) -> Mapping[str, Any] | None:
        """What is known of the end of the job, once all workers are to stop for it."""
        found: Mapping[str, Any] | None = self._ask("leave", self.reports)
        return found

    def staging(self) -> Path:
        """Return an empty directory for the next report."""
        self._staging = self._ask("staging", self.reports + 1)
        if self._staging is not None:
            return self._staging
        # For a report that was made before this worker went back to its last commit.
        self._spare = TemporaryDirectory(prefix=temporary_prefix())
        return Path(self._spare.name)

    def shared_staging(self) -> Path:
        """Refuse what writes a checkpoint while its report is made."""
        raise ConfigError(
            "report_state() is not for elastic runs, whose reports are made by the rank behind the "
            "worker. Save into hpctrain.checkpoint_dir(), and report that."
        )

    def artifacts(self) -> Path:
        """Return the directory for artifacts."""
        return Path(self._ask("artifacts"))

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that the rank knows to be complete."""
        found: Checkpoint | None = self._ask("checkpoint")
        return found

    def all_checkpoints(self, timeout_s: float | None) -> list[ReportedCheckpoint]:
        """Return the run's checkpoints, oldest first."""
        found: list[ReportedCheckpoint] = self._ask("all_checkpoints", timeout_s)
        return found

    def end(self, said: tuple[Any, ...]) -> None:
        """Say what came of the training, and wait until all workers are done."""
        # One that leaves breaks the connections of the others. No thread asks anything meanwhile.
        with self._asks:
            self._connection.send(said)
            with suppress(EOFError, ConnectionError):
                self._connection.recv()

    def _staged(self, number: int, upload: Upload) -> Upload | None:
        """Return the upload of a copy, or None where the report was made before.

        It goes on while this worker trains, or dies. To wait for the commit would be to wait for
        the report of a worker that may be dead, and is replaced only when all others notice it.
        """
        upload.check(report=number, paths=self._paths)
        if upload.upload_fn is not None:
            raise ConfigError(
                "report(checkpoint_upload_fn=...) is not for elastic runs, whose checkpoints are "
                "uploaded by the rank behind the worker. Leave it out."
            )
        source = upload.source
        if source != self._staging:
            directory = self._ask("staging", number)
            if directory is not None:
                shutil.copytree(source, directory, dirs_exist_ok=True)
            if upload.delete_local:
                shutil.rmtree(source)
            if directory is None:
                return None
            upload = replace(upload, checkpoint=Checkpoint(directory))
        return replace(upload, mode=CheckpointUploadMode.ASYNC, delete_local=False)

    def _ask(self, verb: str, *arguments: Any) -> Any:
        question = spec.pack((verb, *arguments), what=f"{verb}()")
        with self._asks:
            self._connection.send_bytes(question)
            is_answered, answer = self._connection.recv()
        if not is_answered:
            raise answer
        return answer
