"""`Validations`: validates checkpoints beside the training, in order."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from hpctrain import timeouts
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.errors import CheckpointError, ConfigError, LaunchError
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.slurm_calls import SlurmCalls
from hpctrain.execute.validation_end import RunningValidation, ValidationEnd, task_timeout_s
from hpctrain.execute.validation_process import ValidationProcess
from hpctrain.log import log
from hpctrain.own_time import Deadline
from hpctrain.plan.process_argv import validation_argv
from hpctrain.plan.spec import RunSpec, ValidationJob, ValidationSpec
from hpctrain.rundir.manifest import DamagedManifestError, Manifest, read_manifest
from hpctrain.rundir.trust import digest_spec, read_spec

PHASE = "validating"
"""Phase in the status while only validations are left to wait for."""
_POLL_S = 0.25
_SAY_AFTER_S = 5.0


class Validations:
    """Validates the checkpoints of a run, in processes beside its executor or in jobs of their own.

    One for a run.

    What is pending is written in the manifest of the checkpoint, in the same moment as the
    checkpoint itself, so an executor that takes the run over finds it there.

    Parameters
    ----------
    run_record
        Where its actions are written.
    checkpoints
        What gets the metrics.
    """

    def __init__(self, run_record: ExecutorRecord, checkpoints: RunCheckpoints) -> None:
        self._run_record = run_record
        self._checkpoints = checkpoints
        self._queue: deque[Manifest] = deque()
        self._running: list[RunningValidation] = []
        self._ended: deque[ValidationEnd] = deque()
        self._begun_again: list[Manifest] = []
        self._spec: tuple[ValidationSpec | None, str, str] | None = None
        self._calls = SlurmCalls()

    def has_pending(self) -> bool:
        """Return whether any has not ended."""
        return bool(self._queue or self._running or self._ended)

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Queue the checkpoints that are to be validated, and are not queued yet."""
        known = [*self._queue, *(one.manifest for one in self._running)]
        known += [one.manifest for one in self._ended]
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
        for one in [*self._running]:
            ended = one.look()
            if ended is None:
                continue
            self._running.remove(one)
            if ended.is_taken_away and ended.manifest not in self._begun_again:
                self._begun_again.append(ended.manifest)
                self._queue.appendleft(ended.manifest)
            else:
                self._ended.append(ended)
        if self._ended:
            self._take_in(self._ended.popleft())
        elif self._queue and len(self._running) < self._most_at_once():
            self._start(self._queue.popleft())

    def wait(self, goes_on: Callable[[], bool]) -> None:
        """Return once none is pending, or too much time is over, or `goes_on` returns false.

        What earlier jobs of the run have waited counts: otherwise a run whose jobs reach their time
        limit meanwhile would be handed on for as long as Slurm does not start a validation.

        Parameters
        ----------
        goes_on
            Called several times a second.
        """
        if not self.has_pending():
            return
        waited_s = self._run_record.validation_wait_s
        left_s = self._wait_timeout_s() - waited_s
        if waited_s > 0:
            # What has ended between two jobs is looked at in any case.
            left_s = max(left_s, timeouts.VALIDATION_FILE_S)
        deadline, say_at = Deadline(left_s), Deadline(_SAY_AFTER_S)
        has_said = False
        while self.has_pending() and goes_on():
            if say_at.is_over and not has_said:
                has_said = True
                log(
                    f"the training has ended. The run waits for the validation of checkpoints "
                    f"{', '.join(self._pending_names())}, for at most {deadline.left_s:.0f} s more "
                    f"(ValidationConfig(wait_timeout_s=...))."
                )
            self.step()
            if self.has_pending() and deadline.is_over:
                self._give_up()
                return
            if self._running:
                self._running[0].wait(_POLL_S)
            elif self.has_pending():
                time.sleep(_POLL_S)
        if self.has_pending():
            self._run_record.note(
                "validations-left",
                checkpoints=self._pending_names(),
                seconds=left_s - deadline.left_s,
            )

    def _pending_names(self) -> list[str]:
        ended = [one.manifest for one in self._ended]
        running = [one.manifest for one in self._running]
        return [manifest.name for manifest in (*ended, *running, *self._queue)]

    def close(self) -> None:
        """Leave what runs. It stays pending, for the next executor of the run."""
        for one in self._running:
            one.leave()
        self._forget()

    def _forget(self) -> None:
        self._running.clear()
        self._queue.clear()
        self._calls.close(timeouts.VALIDATION_CALLS_S)

    def _give_up(self) -> None:
        why = (
            f"it had not ended {self._wait_timeout_s():g} s after the training: "
            f"ValidationConfig(wait_timeout_s=...) sets how long to wait"
        )
        running, queued = [*self._running], [*self._queue]
        for one in running:
            one.end()
        self._forget()
        # Only now is it known which jobs are cancelled.
        left = [
            *(one.make_end({}, why) for one in running),
            *(ValidationEnd(manifest=manifest, metrics={}, error=why) for manifest in queued),
        ]
        for ended in (*self._ended, *left):
            self._take_in(ended)
        self._ended.clear()

    def _most_at_once(self) -> int:
        """Return how many may run at a time; one where the spec does not define how to validate."""
        try:
            validation, _, _ = self._read_spec()
        except (OSError, ConfigError):
            return 1
        return 1 if validation is None or validation.job is None else validation.max_jobs

    def _start(self, manifest: Manifest) -> None:
        try:
            self._running.append(self._launch(manifest))
        except (OSError, LaunchError, ConfigError) as error:
            self._take_in(ValidationEnd(manifest=manifest, metrics={}, error=str(error)))

    def _launch(self, manifest: Manifest) -> RunningValidation:
        validation, cwd, digest = self._read_spec()
        if validation is None:
            raise ConfigError(
                "the trainer has no ValidationConfig any more; give validation_config= again"
            )
        if validation.job is not None:
            return self._submit(manifest, validation, validation.job, cwd=cwd, digest=digest)
        attempt = self._run_record.status.attempt
        running = ValidationProcess(
            self._run_record.paths,
            attempt=attempt,
            manifest=manifest,
            spec=validation,
            digest=digest,
        )
        self._note_start(manifest)
        return running

    def _submit(
        self,
        manifest: Manifest,
        validation: ValidationSpec,
        job: ValidationJob,
        *,
        cwd: str,
        digest: str,
    ) -> RunningValidation:
        from hpctrain.execute.submitted_validation import SubmittedValidation
        from hpctrain.slurm.validation_submission import make_validation_script, submit_validation

        paths = self._run_record.paths
        container = job.container
        argv = validation_argv(
            sys.executable if container is None else container.python,
            run_dir=str(paths.root),
            checkpoint=manifest.name,
            result=str(paths.validation_result(manifest.attempt, manifest.report)),
            spec_digest=digest,
            # It outlives this process.
            executor=0,
        )
        if container is not None:
            from hpctrain.execute.rank_container import vendor_of_gpus
            from hpctrain.plan.container import enter_container

            gpus = vendor_of_gpus(int(validation.use_gpu))
            names = [*job.environment]
            argv = [*enter_container(container, argv, cwd=cwd, gpus=gpus, variables=names).argv]
        script = make_validation_script(
            job,
            paths,
            manifest,
            argv=argv,
            cwd=cwd,
            use_gpu=validation.use_gpu,
            timeout_s=task_timeout_s(manifest),
        )
        self._run_record.check_fence()
        return SubmittedValidation(
            paths,
            manifest=manifest,
            digest=digest,
            calls=self._calls,
            submit=partial(submit_validation, paths, manifest, script, digest=digest),
            is_wanted=partial(self._is_wanted, manifest),
            on_submit=partial(self._note_start, manifest),
        )

    def _is_wanted(self, manifest: Manifest) -> bool:
        """Return whether a checkpoint is there still, and not another one of its name."""
        try:
            present = read_manifest(self._run_record.paths.checkpoints / manifest.name)
        except UnreadableError:
            return True
        except (CheckpointError, DamagedManifestError):
            return False
        return present.created_at == manifest.created_at and present.validation is not None

    def _note_start(self, manifest: Manifest, job_id: str | None = None) -> None:
        job = {} if job_id is None else {"job_id": job_id}
        self._run_record.note(
            "validation-started",
            checkpoint=manifest.name,
            report=manifest.report,
            attempt=self._run_record.status.attempt,
            **job,
        )

    def _take_in(self, ended: ValidationEnd) -> None:
        """Give a checkpoint its metrics; what cannot be written now is tried again."""
        manifest, run_record = ended.manifest, self._run_record
        if not run_record.may_write:
            return
        try:
            is_there = self._checkpoints.end_validation(manifest, ended.metrics)
        except OSError as error:
            run_record.warn_unwritten(f"checkpoints/{manifest.name}", error)
            self._ended.appendleft(ended)
            return
        except UnreadableError:
            # A server that fails over: the next write raises it.
            self._ended.appendleft(ended)
            return
        except CheckpointError as error:
            is_there = False
            log(f"the validation of checkpoint {manifest.name} is left out: {error}")
        for path in ended.leftovers:
            # Without them gone, the next validation of the checkpoint removes them.
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if ended.error is not None:
            where = "" if ended.log is None else f" Its log: {ended.log}"
            kept = " The checkpoint keeps the metrics that it was reported with."
            log(
                f"warning: the validation of checkpoint {manifest.name} failed: {ended.error}."
                f"{kept if is_there else ''}{where}"
                + (f"\n{ended.traceback.rstrip()}" if ended.traceback else "")
            )
        run_record.note(
            "validation-ended",
            checkpoint=manifest.name,
            report=manifest.report,
            attempt=manifest.attempt,
            metrics=dict(ended.metrics) if is_there else {},
            error=ended.error if is_there else "the checkpoint is gone",
            seconds=ended.seconds,
        )

    def _wait_timeout_s(self) -> float:
        """Return how long to wait at the end; not at all where the spec does not define how."""
        try:
            validation, _, _ = self._read_spec()
        except (OSError, ConfigError):
            return 0.0
        return 0.0 if validation is None else validation.wait_timeout_s

    def _read_spec(self) -> tuple[ValidationSpec | None, str, str]:
        """Return how this run validates, its working directory, and the digest of its spec.

        Read once, if needed.
        """
        if self._spec is None:
            content = read_spec(self._run_record.paths)
            run_spec = RunSpec.from_bytes(content)
            self._spec = run_spec.validation, run_spec.settings.cwd, digest_spec(content)
        return self._spec
