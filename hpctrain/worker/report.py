"""`Session`: what a rank knows and says while its training function runs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.files import open_append
from hpctrain.rundir.paths import RunPaths
from hpctrain.world import World


class Channel(Protocol):
    """How a session reaches its executor."""

    def report(self, line: bytes) -> None:
        """Pass a report's metrics on, soon."""

    def stage(self, report: int, line: bytes, parts: bytes) -> None:
        """Pass a report with a staged checkpoint on, at once."""


@dataclass(frozen=True)
class Verdict:
    """What became of a checkpoint that this rank contributed to."""

    path: str | None
    error: str | None


class Session:
    """One rank's side of one attempt.

    Parameters
    ----------
    world
        Where the rank stands.
    paths
        The run directory.
    channel
        To the executor.
    first_report
        Number of the report that the run resumed from; 0 at a fresh start.
    checkpoint
        What the run resumed from.
    commit_timeout_s
        Seconds to wait for a commit.
    """

    def __init__(
        self,
        *,
        world: World,
        paths: RunPaths,
        channel: Channel,
        first_report: int,
        checkpoint: Checkpoint | None,
        commit_timeout_s: float,
    ) -> None:
        self.world = world
        self._paths = paths
        self._channel = channel
        self._count = first_report
        self._checkpoint = checkpoint
        self._commit_timeout_s = commit_timeout_s
        self.preprocessor: Any = None
        """Goes into every checkpoint."""
        self._turn = threading.Condition()
        self._frozen = False
        self._stop_at: int | None = None
        self._verdicts: dict[int, Verdict] = {}
        self._metrics = open_append(paths.metrics) if world.world_rank == 0 else -1

    @property
    def reports(self) -> int:
        """Number of the last report, counted over all attempts."""
        return self._count

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that this rank knows to be complete."""
        return self._checkpoint

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Report metrics, and a checkpoint with them or not."""
        content = encode_metrics(metrics)
        with self._turn:
            while self._frozen:
                # For the moment in which the executor asks all ranks how far they are.
                if not self._turn.wait(self._commit_timeout_s):
                    raise CheckpointError(
                        f"rank {self.world.world_rank} waited {self._commit_timeout_s:.0f} s for "
                        f"the executor to say at which report to stop."
                    )
            self._count = number = self._count + 1
        if checkpoint is None:
            line = b'{"report":%d,"attempt":%d,"time":%.6f,"checkpoint":null,"metrics":%s}\n' % (
                number,
                self.world.attempt,
                time.time(),
                content,
            )
            self._append(line)
            self._channel.report(line)
        else:
            self._report_checkpoint(number, content, checkpoint)

    def should_stop(self) -> bool:
        """Return whether this rank has reached the report at which all ranks stop."""
        return self._stop_at is not None and self._count >= self._stop_at

    def staging(self) -> Path:
        """Return an empty directory that lies inside the commit of the next report."""
        import shutil

        from hpctrain.rundir.staging import staging_directory

        directory = staging_directory(
            self._paths.checkpoints,
            attempt=self.world.attempt,
            report=self._count + 1,
            rank=self.world.world_rank,
        )
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return directory

    # Called from the thread of the link.

    def freeze(self) -> int:
        """Promise to begin no further report before `stop_after`; return the last one begun."""
        with self._turn:
            self._frozen = True
            return self._count

    def stop_after(self, report: int | None) -> None:
        """Go on until `report`, after which `should_stop` is true; None only lifts the promise."""
        with self._turn:
            if report is not None:
                self._stop_at = report
            self._frozen = False
            self._turn.notify_all()

    def decide(self, report: int, verdict: Verdict) -> None:
        """Take note of what became of a checkpoint."""
        with self._turn:
            self._verdicts[report] = verdict
            self._turn.notify_all()

    def close(self) -> None:
        """Close the metrics file."""
        if self._metrics >= 0:
            os.close(self._metrics)
            self._metrics = -1

    def _report_checkpoint(self, number: int, content: bytes, checkpoint: Checkpoint) -> None:
        import shutil

        from hpctrain.rundir.staging import copy_into, seal, staging_directory

        directory = staging_directory(
            self._paths.checkpoints,
            attempt=self.world.attempt,
            report=number,
            rank=self.world.world_rank,
        )
        try:
            if checkpoint.path != directory:
                if directory.exists() and directory not in checkpoint.path.parents:
                    # checkpoint_dir() gave it out, and something else is reported now.
                    shutil.rmtree(directory)
                copy_into(checkpoint.path, directory)
            if self.preprocessor is not None:
                Checkpoint(directory).set_preprocessor(self.preprocessor)
            staged = seal(directory)
        except OSError as error:
            raise CheckpointError(
                f"rank {self.world.world_rank} could not write its part of the checkpoint of "
                f"report {number} to {directory}: {error.strerror or error}. The last complete "
                f"checkpoint is {self._last_checkpoint()}; free space, or choose another "
                f"storage_path."
            ) from error
        parts = json.dumps([[file.path, file.size, file.digest] for file in staged])
        line = b'{"report":%d,"attempt":%d,"time":%.6f,"checkpoint":"%06d","metrics":%s}\n' % (
            number,
            self.world.attempt,
            time.time(),
            number,
            content,
        )
        # Before the commit: a run that resumes from this checkpoint does not report it again.
        self._append(line)
        self._channel.stage(number, line, parts.encode())
        with self._turn:
            if not self._turn.wait_for(lambda: number in self._verdicts, self._commit_timeout_s):
                raise CheckpointError(
                    f"rank {self.world.world_rank} waited {self._commit_timeout_s:.0f} s in "
                    f"report {number} for its checkpoint: not every rank made this report. "
                    f"SyncConfig(sync_timeout=...) sets how long to wait."
                )
            verdict = self._verdicts.pop(number)
        if verdict.path is None:
            raise CheckpointError(
                f"the checkpoint of report {number} was not committed: {verdict.error}"
            )
        self._checkpoint = Checkpoint(verdict.path)

    def _last_checkpoint(self) -> str:
        return "none" if self._checkpoint is None else str(self._checkpoint.path)

    def _append(self, line: bytes) -> None:
        if self._metrics < 0:
            return
        try:
            written = os.write(self._metrics, line)
        except OSError as error:
            raise CheckpointError(
                f"report {self._count} could not be written to {self._paths.metrics}: "
                f"{error.strerror}. The last complete checkpoint is {self._last_checkpoint()}; "
                f"free space and call fit() again."
            ) from error
        if written < len(line):
            raise CheckpointError(
                f"report {self._count} could not be written to {self._paths.metrics}: only "
                f"{written} of {len(line)} bytes fit. The last complete checkpoint is "
                f"{self._last_checkpoint()}; free space and call fit() again."
            )


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Return metrics as JSON. Not collective.

    Raises
    ------
    ConfigError
        If they are not a mapping, or hold what JSON has no form for: tensors and arrays.
    """
    if not isinstance(metrics, dict):
        raise ConfigError(
            f"report({metrics!r}): metrics are a dict of names and numbers, and this is a "
            f"{type(metrics).__name__}. For example: report({{'loss': 0.1}})."
        )
    try:
        return _encode(metrics).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"report(): {error}") from error


def _encode_other(value: Any) -> Any:
    """Give JSON the numbers of NumPy; refuse what would have to be copied from a device."""
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"metrics hold {value!r:.80} of type {kind.__module__}.{kind.__qualname__}. Metrics are "
        f"numbers, strings, lists and dicts: use .item() or .tolist()."
    )


_encode = json.JSONEncoder(separators=(",", ":"), default=_encode_other, check_circular=True).encode
