"""`SubmittedValidation`: follows the job that validates a checkpoint, from its submission on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.execute.slurm_calls import SlurmCalls
from hpctrain.execute.validation_end import (
    RunningValidation,
    ValidationEnd,
    explain_signal,
    explain_status,
    explain_timeout,
    read_metrics,
    task_timeout_s,
)
from hpctrain.own_time import Deadline
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_end
from hpctrain.slurm.job import find_job, find_jobs_of_script
from hpctrain.slurm.output import Job
from hpctrain.slurm.validation_submission import (
    TIMED_OUT,
    end_file,
    explain_job_end,
    names_spec,
    read_record,
    record_file,
)

# At the file that the end of a job writes.
_LOOK_INTERVAL_S = 1.0
_FIRST_ASK_S, _LONGEST_ASK_S = 15.0, 300.0
_SUBMIT_PAUSES_S = (15.0, 60.0, 240.0)
# Slurm knows the reason of an end some seconds after the end of the processes.
_REASON_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
_LAST_BYTES = 4096


def pause_s(num_asks: int) -> float:
    """Return the seconds until Slurm is asked for a job whose end is not written down.

    Pure; not collective.

    Parameters
    ----------
    num_asks
        How often it was asked before.

    Examples
    --------
    >>> [pause_s(num_asks) for num_asks in range(6)]
    [15.0, 30.0, 60.0, 120.0, 240.0, 300.0]
    """
    # A job may wait for days: no larger powers than that of 20.
    return min(_FIRST_ASK_S * float(2 ** min(num_asks, 20)), _LONGEST_ASK_S)


class SubmittedValidation(RunningValidation):
    """A validation that runs in a job of its own.

    The job outlives the executor: the next one finds its id, or what it has written.
    Slurm is asked seldom, since the job itself writes down how it ends.

    Parameters
    ----------
    paths
        The run directory.
    manifest
        Of the checkpoint.
    digest
        That of the spec of the run. A job that was submitted with another one, and has found
        nothing yet, is not taken over.
    calls
        Makes the calls of Slurm.
    submit
        Submits the job, or finds the one that was; returns its id.
    is_wanted
        Returns whether the checkpoint is still the one that is validated.
    on_submit
        Gets the id of a job that was submitted.
    """

    def __init__(
        self,
        paths: RunPaths,
        *,
        manifest: Manifest,
        digest: str,
        calls: SlurmCalls,
        submit: Callable[[], str],
        is_wanted: Callable[[], bool],
        on_submit: Callable[[str], None],
    ) -> None:
        attempt, report = manifest.attempt, manifest.report
        super().__init__(manifest, log=paths.validation_log(attempt, report))
        self._script = paths.validation_job(attempt, report)
        self._result = paths.validation_result(attempt, report)
        self._failure = paths.validation_failure(attempt, report)
        # The script is the last: with it alone the job is looked for in Slurm's queue.
        self._files: tuple[Path, ...] = (
            *(self._result, end_file(self._script), record_file(self._script)),
            self._script,
        )
        self._checkpoint = paths.checkpoints / manifest.name
        self._calls, self._submit = calls, submit
        self._is_wanted, self._on_submit = is_wanted, on_submit
        self._job_id = read_record(self._script, manifest)
        if not names_spec(self._script, digest) and not self._result.exists():
            self._job_id = None
        self._call: tuple[Future[Any], Callable[[Future[Any]], ValidationEnd | None]] | None = None
        self._cancellation: Future[None] | None = None
        self._next_look = Deadline(0.0)
        self._num_refusals = self._num_asks = self._num_reasons = 0
        self._next_call = Deadline(0.0 if self._job_id is None else pause_s(0))
        self._status: int | None = None
        self._seconds: float | None = None
        self._final: tuple[Job | None, Deadline] | None = None

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """Files that are no longer needed once its end is recorded.

        None while its job may go on in spite of `end`: ``hpctrain cancel --now`` finds it by them.
        """
        ended = self._cancellation
        is_over = ended is None or (ended.done() and ended.exception() is None)
        return self._files if is_over else ()

    def look(self) -> ValidationEnd | None:
        """Return how it has ended; None while it runs. Returns at once."""
        if self._call is not None:
            future, take = self._call
            if not future.done():
                return None
            self._call = None
            return take(future)
        if not self._next_look.is_over:
            return None
        self._next_look = Deadline(_LOOK_INTERVAL_S)
        if self._is_checkpoint_gone():
            return self._drop()
        if self._job_id is None:
            if self._next_call.is_over:
                self._call = self._calls.begin(self._submit, changes=True), self._take_job_id
            return None
        # Slurm may have queued it again between two asks, and it has ended once more.
        if (ended := self._read_end()) not in (None, (self._status, self._seconds)):
            self._status, self._seconds = ended
            self._num_asks = self._num_reasons = 0
            if 0 < self._status <= 128:
                return self._conclude(None)
            if self._status == 0:
                self._final = None, Deadline(timeouts.VALIDATION_FILE_S)
            # Slurm knows why.
            self._next_call = Deadline(_REASON_PAUSES_S[0])
        if self._final is not None:
            job, deadline = self._final
            return self._conclude(job) if deadline.is_over or self._has_files() else None
        if self._next_call.is_over:
            if not self._is_wanted():
                return self._drop()
            job_id = self._job_id
            asked = self._calls.begin(lambda: find_job(job_id), changes=False)
            self._call = asked, self._take_job
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait for its end: so long."""
        time.sleep(timeout_s)

    def end(self) -> None:
        """Cancel the job: its metrics are not needed."""
        if self._cancellation is not None:
            return
        name = self.manifest.name
        if self._job_id is not None:
            self._cancellation = self._calls.cancel(name, self._job_id)
        elif self._call is not None and not self._call[0].cancel():
            self._cancellation = self._calls.cancel(name, self._call[0])

    def leave(self) -> None:
        """Leave it to the next executor of the run, which takes the job over, or submits it."""
        if self._job_id is None and self._call is not None:
            self._call[0].cancel()

    def _take_job_id(self, future: Future[str]) -> ValidationEnd | None:
        try:
            job_id = future.result()
        except (LaunchError, ConfigError, OSError) as error:
            is_passing = isinstance(error, LaunchError) and error.transient
            if is_passing and self._num_refusals < len(_SUBMIT_PAUSES_S):
                self._next_call = Deadline(_SUBMIT_PAUSES_S[self._num_refusals])
                self._num_refusals += 1
                return None
            if not isinstance(error, LaunchError):
                return self.make_end({}, str(error))
            # Slurm may have taken it, and its answer did not come.
            looked = self._calls.begin(partial(self._find_job, error), changes=True)
            self._call = looked, partial(self._take_found_id, str(error))
            return None
        self._take_id(job_id)
        return None

    def _find_job(self, refusal: LaunchError) -> str:
        """Return the job in Slurm's queue whose submission was refused; otherwise raise that."""
        jobs = find_jobs_of_script(self._script)
        if not jobs:
            raise refusal
        return jobs[0].job_id

    def _take_found_id(self, refusal: str, future: Future[str]) -> ValidationEnd | None:
        try:
            job_id = future.result()
        except (LaunchError, OSError):
            return self.make_end({}, refusal)
        self._take_id(job_id)
        return None

    def _take_id(self, job_id: str) -> None:
        self._job_id = job_id
        self._next_call = Deadline(pause_s(0))
        self._on_submit(job_id)

    def _take_job(self, future: Future[Job | None]) -> ValidationEnd | None:
        """Take in what Slurm reports of the job."""
        try:
            job = future.result()
        except (LaunchError, OSError):
            self._ask_later()
            return None
        if self._status is not None:
            return self._take_reason(job)
        if job is None or job.is_final:
            self._final = job, Deadline(timeouts.VALIDATION_FILE_S)
        else:
            self._ask_later()
        return None

    def _ask_later(self) -> None:
        self._num_asks += 1
        self._next_call = Deadline(pause_s(self._num_asks))

    def _take_reason(self, job: Job | None) -> ValidationEnd | None:
        if job is not None and not job.is_final:
            if job.state == "PENDING" or not end_file(self._script).exists():
                # Slurm has queued it again.
                end_file(self._script).unlink(missing_ok=True)
                self._status = self._seconds = None
                self._num_reasons = 0
                self._ask_later()
                return None
            if self._num_reasons + 1 < len(_REASON_PAUSES_S):
                self._num_reasons += 1
                self._next_call = Deadline(_REASON_PAUSES_S[self._num_reasons])
                return None
            if not self._result.exists():
                # It is COMPLETING while an epilog runs, or while its node does not answer.
                self._ask_later()
                return None
        return self._conclude(job)

    def _read_end(self) -> tuple[int, float] | None:
        """Return the exit status and the seconds that the job has written; None if it has not."""
        try:
            status, seconds, job_id = end_file(self._script).read_text().split()
            return (int(status), float(seconds)) if job_id == self._job_id else None
        except (OSError, ValueError):
            return None

    def _has_files(self) -> bool:
        """Return whether all that the job has written can be seen from this node."""
        if self._status == 0:
            return read_metrics(self._result)[1] is None
        return self._status is not None

    def _conclude(self, job: Job | None) -> ValidationEnd:
        metrics, error = read_metrics(self._result)
        if error is None or self._status == 0:
            return self.make_end(metrics, error, seconds=self._seconds)
        traceback = ""
        timeout_s = task_timeout_s(self.manifest)
        if timeout_s is not None and self._has_timed_out(timeout_s):
            error = explain_timeout(timeout_s)
        elif self._status is not None and self._status <= 128:
            error, traceback = explain_status(self._status, self._last_line(), self._failure)
        elif job is not None and job.is_final and not (self._status and job.state == "FAILED"):
            error = explain_job_end(job)
        elif self._status is not None:
            error = explain_signal(self._status - 128)
        else:
            error = f"its job {self._job_id} is gone, and Slurm has forgotten why"
        return self.make_end({}, error, traceback, seconds=self._seconds)

    def _has_timed_out(self, timeout_s: float) -> bool:
        """Return whether ``timeout`` has ended it; it kills what does not end on SIGTERM."""
        return self._status == TIMED_OUT or (
            self._status == 128 + 9 and (self._seconds or 0.0) >= timeout_s
        )

    def _is_checkpoint_gone(self) -> bool:
        try:
            os.stat(self._checkpoint)
        except FileNotFoundError:
            return True
        except OSError:
            # A server that fails over.
            return False
        return False

    def _drop(self) -> ValidationEnd | None:
        """End it for a checkpoint that is gone; return how, once that is done."""
        self.end()
        if self._cancellation is None:
            return self._end_without_checkpoint()
        self._call = self._cancellation, lambda _: self._end_without_checkpoint()
        return None

    def _end_without_checkpoint(self) -> ValidationEnd:
        return self.make_end({}, "the checkpoint is gone", seconds=self._seconds)

    def _last_line(self) -> str:
        try:
            written = read_end(self.log, _LAST_BYTES)
        except OSError:
            return ""
        return (written.decode(errors="replace").splitlines() or [""])[-1]
