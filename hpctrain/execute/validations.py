"""`Validations`: validates checkpoints beside the training, one at a time."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.errors import CheckpointError, ConfigError, LaunchError
from hpctrain.execute.journal import Journal
from hpctrain.execute.process import StepProcess
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.log import log
from hpctrain.own_time import Deadline
from hpctrain.plan.spec import RunSpec, ValidationSpec
from hpctrain.printable import show_controls
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.manifest import DamagedManifestError, Manifest, read_manifest
from hpctrain.rundir.trust import digest_spec, read_spec
from hpctrain.worker.failure import RankFailure

PHASE = "validating"
"""What the status says while only validations are left to wait for."""
_POLL_S = 0.25
_LONGEST_LINE = 200
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 2000, 10_000
_WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class _Running:
    manifest: Manifest
    process: StepProcess
    result: Path
    deadline: Deadline | None
    began_at: float


@dataclass(frozen=True, kw_only=True)
class _Ended:
    manifest: Manifest
    metrics: Mapping[str, Any]
    error: str | None
    traceback: str = ""
    """Of the validation function, if it raised."""
    log: Path | None = None
    seconds: float | None = None
    is_taken_away: bool = False
    """Whether a warning of Slurm, which goes to all of a job, came before it could ignore it."""


class Validations:
    """Validates the checkpoints of a run, in processes beside its executor. One for a run.

    What is pending is written in the manifest of the checkpoint, in the same moment as the
    checkpoint itself, so an executor that takes the run over finds it there.

    Parameters
    ----------
    journal
        Where it says what it did.
    checkpoints
        What gets the metrics.
    """

    def __init__(self, journal: Journal, checkpoints: RunCheckpoints) -> None:
        self._journal = journal
        self._checkpoints = checkpoints
        self._queue: deque[Manifest] = deque()
        self._running: _Running | None = None
        self._ended: _Ended | None = None
        self._begun_again: list[Manifest] = []
        self._spec: tuple[ValidationSpec | None, str] | None = None

    def has_pending(self) -> bool:
        """Return whether any has not ended."""
        return bool(self._queue or self._running or self._ended)

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Queue the checkpoints that are to be validated, and are not queued yet."""
        known = [*self._queue]
        known += [one.manifest for one in (self._running, self._ended) if one is not None]
        present = {(manifest.name, manifest.created_at) for manifest in known}
        for manifest in manifests:
            key = manifest.name, manifest.created_at
            if manifest.validation is not None and key not in present:
                self._queue.append(manifest)

    def add_committed(self, directory: Path) -> None:
        """Queue a checkpoint that was just committed."""
        try:
            self.add([read_manifest(directory)])
        except (CheckpointError, DamagedManifestError) as error:
            # It stays pending: the next attempt finds it.
            log(f"checkpoint {directory.name} is not validated: {error}")

    def step(self) -> None:
        """Take in what has ended, and start the next. Returns at once."""
        if not self.has_pending():
            return
        if self._running is not None:
            ended = self._look_at(self._running)
            if ended is None:
                return
            self._running = None
            if ended.is_taken_away and ended.manifest not in self._begun_again:
                self._begun_again.append(ended.manifest)
                self._queue.appendleft(ended.manifest)
                return
            self._ended = ended
        if self._ended is not None:
            self._take_in(self._ended)
        elif self._queue:
            self._start(self._queue.popleft())

    def wait(self, goes_on: Callable[[], bool]) -> None:
        """Return once none is pending, or too much time is over, or `goes_on` says so.

        Parameters
        ----------
        goes_on
            Called several times a second.
        """
        if not self.has_pending():
            return
        deadline = Deadline(self._wait_timeout_s())
        while self.has_pending() and goes_on():
            self.step()
            if self.has_pending() and deadline.is_over:
                self._give_up()
                return
            if self._running is not None:
                self._running.process.wait(_POLL_S)
            elif self.has_pending():
                time.sleep(_POLL_S)

    def close(self) -> None:
        """End what runs. It stays pending, for whoever goes on with the run."""
        running, self._running = self._running, None
        if running is not None:
            running.process.kill(timeouts.VALIDATION_END_S)
        self._queue.clear()

    def _give_up(self) -> None:
        why = (
            f"it had not ended {self._wait_timeout_s():g} s after the training: "
            f"ValidationConfig(wait_timeout_s=...) sets how long to wait"
        )
        left, running = list(self._queue), self._running
        self.close()
        if running is not None:
            left.insert(0, running.manifest)
        for manifest in left:
            path = self._log_of(manifest) if running and manifest is running.manifest else None
            self._take_in(_Ended(manifest=manifest, metrics={}, error=why, log=path))
        self._ended = None

    def _start(self, manifest: Manifest) -> None:
        try:
            self._running = self._launch(manifest)
        except (OSError, LaunchError, ConfigError) as error:
            self._take_in(_Ended(manifest=manifest, metrics={}, error=str(error)))

    def _launch(self, manifest: Manifest) -> _Running:
        paths, attempt = self._journal.paths, self._journal.status.attempt
        spec, digest = self._read_spec()
        if spec is None:
            raise ConfigError(
                "the trainer has no ValidationConfig any more; give validation_config= again"
            )
        result = paths.validation_result(attempt, manifest.report)
        make_directory(result.parent, below=paths.root)
        result.unlink(missing_ok=True)
        self._failure_of(manifest).unlink(missing_ok=True)
        environment = environ.without_launcher_variables(environ.environment())
        # What the function starts by itself stays on this machine.
        environment[environ.RANK_MARKER] = "1"
        if not spec.use_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        process = StepProcess(
            [
                *(sys.executable, "-m", "hpctrain.worker.validate"),
                *(str(paths.root), manifest.name, str(result), digest, str(os.getpid())),
            ],
            environment=environment,
            log=self._log_of(manifest),
        )
        self._journal.note(
            "validation-started", checkpoint=manifest.name, report=manifest.report, attempt=attempt
        )
        timeout_s = (manifest.validation or {}).get("timeout_s")
        return _Running(
            manifest=manifest,
            process=process,
            result=result,
            deadline=None if timeout_s is None else Deadline(float(timeout_s)),
            began_at=time.monotonic(),
        )

    def _look_at(self, running: _Running) -> _Ended | None:
        """Return how a validation has ended; None while it goes on."""
        status = running.process.returncode()
        if status is None and (running.deadline is None or not running.deadline.is_over):
            return None
        error: str | None = None
        traceback = ""
        # What it has started may be there still.
        running.process.kill(timeouts.VALIDATION_END_S)
        metrics: Mapping[str, Any] = {}
        if status is None:
            timeout_s = (running.manifest.validation or {}).get("timeout_s")
            error = f"it took longer than timeout_s={timeout_s:g}"
        elif status != 0:
            error, traceback = _explain_status(
                status, running.process.last_lines(1), self._failure_of(running.manifest)
            )
        if error is None:
            try:
                metrics = json.loads(running.result.read_bytes())
            except (OSError, ValueError, RecursionError) as unreadable:
                error = f"its metrics cannot be read: {unreadable}"
        if error is None and not isinstance(metrics, dict):
            metrics, error = {}, "its metrics are no dict"
        return _Ended(
            manifest=running.manifest,
            metrics=metrics,
            error=error,
            traceback=traceback,
            log=running.process.log,
            seconds=time.monotonic() - running.began_at,
            is_taken_away=status is not None and -status in _WARNINGS,
        )

    def _take_in(self, ended: _Ended) -> None:
        """Give a checkpoint its metrics; what cannot be written now is tried again."""
        self._ended = ended
        manifest, journal = ended.manifest, self._journal
        if not journal.may_write:
            self._ended = None
            return
        try:
            if ended.log is not None:
                ended.log.with_suffix(".json").unlink(missing_ok=True)
            is_there = self._checkpoints.end_validation(manifest, ended.metrics)
        except OSError as error:
            journal.complain(f"checkpoints/{manifest.name}", error)
            return
        except UnreadableError:
            # A server that fails over; whoever writes next says so.
            return
        except CheckpointError as error:
            is_there = False
            log(f"the validation of checkpoint {manifest.name} is left out: {error}")
        self._ended = None
        if ended.error is not None:
            where = "" if ended.log is None else f" Its log: {ended.log}"
            log(
                f"warning: the validation of checkpoint {manifest.name} failed: {ended.error}. The "
                f"checkpoint keeps the metrics that it was reported with.{where}"
                + (f"\n{ended.traceback.rstrip()}" if ended.traceback else "")
            )
        journal.note(
            "validation-ended",
            checkpoint=manifest.name,
            report=manifest.report,
            attempt=manifest.attempt,
            metrics=dict(ended.metrics) if is_there else {},
            error=ended.error if is_there else "the checkpoint is gone",
            seconds=ended.seconds,
        )

    def _log_of(self, manifest: Manifest) -> Path:
        return self._journal.paths.validation_log(self._journal.status.attempt, manifest.report)

    def _failure_of(self, manifest: Manifest) -> Path:
        return self._journal.paths.validation_failure(self._journal.status.attempt, manifest.report)

    def _wait_timeout_s(self) -> float:
        """Return how long to wait at the end; not at all where nobody says how to validate."""
        try:
            spec, _ = self._read_spec()
        except (OSError, ConfigError):
            return 0.0
        return 0.0 if spec is None else spec.wait_timeout_s

    def _read_spec(self) -> tuple[ValidationSpec | None, str]:
        """Return how this run validates, and the digest of what says so. Read once, if needed."""
        if self._spec is None:
            content = read_spec(self._journal.paths)
            self._spec = RunSpec.from_bytes(content).validation, digest_spec(content)
        return self._spec


def _explain_status(status: int, last_line: str, kept: Path) -> tuple[str, str]:
    """Return why a validation failed, and the traceback of its function, if it raised."""
    if status < 0:
        # signal.Signals has no names of real-time signals.
        names = {number.value: number.name for number in signal.Signals}
        return f"it was killed by {names.get(-status, f'signal {-status}')}", ""
    try:
        failure = RankFailure.from_json(json.loads(kept.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        # It failed before, or did not get as far.
        pass
    else:
        # It stands in one line of the ledger; the file has all of it.
        message = show_controls(str(failure.message))
        more = " ..." if len(message) > _LONGEST_MESSAGE else ""
        raised = f"{failure.type}: {message[:_LONGEST_MESSAGE]}{more}"
        return raised, show_controls(str(failure.traceback)[:_LONGEST_TRACEBACK])
    said = f": {show_controls(last_line.strip()[:_LONGEST_LINE])}" if last_line.strip() else ""
    return f"it ended with status {status}{said}", ""
