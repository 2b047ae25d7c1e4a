"""`SlurmCalls`: Slurm's commands for validations, in threads beside the executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hpctrain import timeouts
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.log import log
from hpctrain.slurm.job import cancel_jobs

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cancellation:
    checkpoint: str
    job: str | Future[str]
    """Its id, or the submission that returns it."""
    done: Future[None] = field(default_factory=Future)


class SlurmCalls:
    """Calls of Slurm's commands, one after the other.

    A controller that is busy or away takes its time to answer, and the executor has ranks to
    attend to. Questions have a thread of their own: no submission or cancellation waits for them.
    """

    def __init__(self) -> None:
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        self._pending: set[Future[Any]] = set()
        self._to_cancel: deque[_Cancellation] = deque()
        self._cancellations: list[_Cancellation] = []

    def begin(self, call: Callable[[], T], *, changes: bool) -> Future[T]:
        """Begin a call; `changes`: it submits or cancels, so `close` waits for it.

        Where no thread can be started, it has failed with a `LaunchError` that may pass.
        """
        if changes not in self._threads:
            name = f"hpctrain-validation-jobs-{'changes' if changes else 'questions'}"
            self._threads[changes] = ThreadPoolExecutor(1, thread_name_prefix=name)
        try:
            future = self._threads[changes].submit(call)
        except RuntimeError as error:
            # For example at the limit of processes (ulimit -u). The call is queued all the same:
            # a later one would take it along.
            self._threads.pop(changes).shutdown(wait=False, cancel_futures=True)
            failed: Future[T] = Future()
            failed.set_exception(LaunchError(str(error), transient=True))
            return failed
        self._pending = {one for one in self._pending if not one.done()}
        if changes:
            self._pending.add(future)
        return future

    def cancel(self, checkpoint: str, job: str | Future[str]) -> Future[None]:
        """Begin to cancel the job of a validation, in one call with all others that wait for it.

        Parameters
        ----------
        checkpoint
            Name of what it validates.
        job
            Its id, or the submission that returns it, which was begun here.
        """
        one = _Cancellation(checkpoint=checkpoint, job=job)
        self._cancellations = [each for each in self._cancellations if not each.done.done()]
        self._cancellations.append(one)
        self._to_cancel.append(one)
        begun = self.begin(self._cancel_all, changes=True)
        if begun.done() and isinstance(error := begun.exception(), LaunchError):
            self._to_cancel.remove(one)
            _warn([one], str(error))
            one.done.set_exception(error)
        return one.done

    def close(self, patience_s: float) -> None:
        """Wait for the calls that change something; log which jobs were not cancelled in time."""
        wait_for_all(self._pending, patience_s)
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
        self._threads.clear()
        left = [one for one in self._cancellations if not one.done.done()]
        if left:
            _warn(left, f"Slurm did not answer within {timeouts.describe(patience_s)}")
        self._cancellations.clear()

    def _cancel_all(self) -> None:
        ones = []
        while self._to_cancel:
            ones.append(self._to_cancel.popleft())
        known = [(one, job_id) for one in ones if (job_id := _id_of(one)) is not None]
        if not known:
            return
        try:
            cancel_jobs([job_id for _, job_id in known])
        except (LaunchError, ConfigError, OSError) as error:
            _warn([one for one, _ in known], str(error))
            for one, _ in known:
                one.done.set_exception(error)
        else:
            for one, _ in known:
                one.done.set_result(None)


def _id_of(one: _Cancellation) -> str | None:
    """Return the id of a job to cancel; None if its submission, which is over, has failed."""
    if isinstance(one.job, str):
        return one.job
    error = one.job.exception()
    if error is None:
        return one.job.result()
    if isinstance(error, LaunchError) and error.transient:
        # sbatch did not answer: Slurm may have the job.
        _warn([one], str(error))
        one.done.set_exception(error)
    else:
        one.done.set_result(None)
    return None


def _warn(ones: list[_Cancellation], why: str) -> None:
    names = ", ".join(one.checkpoint for one in ones)
    jobs = [one.job if isinstance(one.job, str) else _result_of(one.job) for one in ones]
    ids = " ".join(job for job in jobs if job is not None)
    end = f" End them with: scancel {ids}" if ids else ""
    log(f"warning: jobs that validate checkpoints ({names}) may go on: {why}.{end}")


def _result_of(submission: Future[str]) -> str | None:
    is_known = submission.done() and not submission.cancelled() and not submission.exception()
    return submission.result() if is_known else None
