"""A rank of an elastic run: it keeps a worker, and another one when that dies.

A world of MPI cannot lose a rank and go on. So in an elastic run the ranks do not train; each has a
child that does, whose Horovod knows nothing of MPI. What the training function says to hpctrain
goes through the rank, which outlives it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.horovod.gloo import ask_rendezvous
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.worker.context import ActiveWorker, active_worker
from hpctrain.worker.pinned import pinned_sources
from hpctrain.worker.report_count import LeaveTraining

_WORKER = "hpctrain.horovod.elastic_worker"
_LOOK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ElasticLoop:
    """The training function of the ranks of an elastic run: it runs the user's in a child."""

    train_loop: Callable[..., Any]
    takes_config: bool
    max_replacements: int

    def __call__(self, config: dict[str, Any]) -> Any:
        """Return what the worker's training function returned. Collective.

        Raises
        ------
        WorkerDiedError
            If workers of this rank died too often. What the training function raises, too.
        """
        worker = active_worker("the training function of an elastic run")
        rank = worker.context.world.world_rank
        arguments = (config,) if self.takes_config else ()
        work = spec.pack((self.train_loop, arguments), what="the training function")
        first_report = worker.session.reports
        for replacements in range(self.max_replacements + 1):
            with Keeper(worker, work, first_report=first_report) as keeper:
                leave: LeaveTraining | None = None
                value = None
                try:
                    value = keeper.serve()
                except LeaveTraining as told:
                    leave = told
                except WorkerDiedError as error:
                    if replacements == self.max_replacements:
                        raise
                    log(f"{error} It is replaced.")
                    ask_rendezvous(
                        "PUT", f"/replaced/{rank}", timeout_s=timeouts.HOROVOD_RENDEZVOUS_S
                    )
                    continue
                ask_rendezvous("PUT", f"/finished/{rank}", timeout_s=timeouts.HOROVOD_RENDEZVOUS_S)
                # Until all have returned: one that leaves breaks the connections of the others.
                worker.comm.barrier()
                keeper.end()
                if leave is not None:
                    raise leave
                return value
        raise AssertionError


class WorkerDiedError(RuntimeError):
    """The process of a worker ended without an exception."""


class TracebackOfWorkerError(Exception):
    """Carries the traceback of an exception from a worker to its rank."""

    def __str__(self) -> str:
        """Return the traceback."""
        return f"\n{self.args[0]}"


class Keeper:
    """One worker, and the rank's end of the connection to it.

    Parameters
    ----------
    worker
        The rank's own.
    work
        The pickled training function, with its arguments.
    first_report
        Number of the report that the attempt resumed from.
    """

    def __init__(self, worker: ActiveWorker, work: bytes, *, first_report: int) -> None:
        self._session = worker.session
        self._rank = worker.context.world.world_rank
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno()), str(os.getpid())],
                env=environ.environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._connection = Connection(ours.detach())
        self._hello = {
            "sys_path": list(sys.path),
            "sources": pinned_sources(),
            "context": worker.context,
            "work": work,
            "first_report": first_report,
        }

    def serve(self) -> Any:
        """Do what the worker asks for until its training function has returned; return its value.

        Not collective.

        Raises
        ------
        LeaveTraining
            If it was unwound, because all ranks are to leave.
        WorkerDiedError
            If the worker is dead.
        """
        self._send(self._hello)
        while True:
            verb, *arguments = self._receive()
            if verb == "returned":
                return spec.unpack(arguments[0]) if arguments[0] else None
            if verb == "left":
                raise LeaveTraining
            if verb == "raised":
                error, trace = spec.unpack(arguments[0])
                raise error from TracebackOfWorkerError(trace)
            try:
                answer = (True, getattr(self, f"_answer_{verb}")(*arguments))
            except (LeaveTraining, Exception) as error:
                answer = (False, error)
            self._send(answer)

    def end(self) -> None:
        """Let the worker leave, whose training function has returned. Not collective."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeouts.HOROVOD_WORKER_END_S)

    def __enter__(self) -> Keeper:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker, whatever it does."""
        self._connection.close()
        self._process.kill()
        self._process.wait(timeouts.HOROVOD_WORKER_END_S)

    def _receive(self) -> Any:
        # Looks at the process, too: its own children may hold the connection open for a while.
        while not self._connection.poll(_LOOK_S):
            if self._process.poll() is not None and not self._connection.poll(0):
                raise self._died()
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None

    def _send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(spec.pack(message, what="the answer"))
        except OSError:
            raise self._died() from None

    def _died(self) -> WorkerDiedError:
        try:
            status = self._process.wait(timeouts.HOROVOD_WORKER_END_S)
        except subprocess.TimeoutExpired:
            return WorkerDiedError(f"the worker of rank {self._rank} has closed its connection.")
        cause = f"signal {-status}" if status < 0 else f"exit status {status}"
        return WorkerDiedError(
            f"the worker of rank {self._rank} (pid {self._process.pid}) ended with {cause} after "
            f"report {self._session.reports}."
        )

    def _is_made(self, report: int) -> bool:
        # A worker that went back to its last commit makes reports again that were made before.
        return report <= self._session.reports

    def _answer_report(
        self, number: int, metrics: Mapping[str, Any], upload: Any, validation: Any
    ) -> None:
        if not self._is_made(number):
            self._session.report(metrics, upload, validation=validation)

    def _answer_should_stop(self, reports: int) -> bool:
        return self._session.should_stop_after(reports)

    def _answer_leave(self, reports: int) -> Any:
        return self._session.leave_after(reports)

    def _answer_staging(self, number: int) -> Any:
        return None if self._is_made(number) else self._session.staging()

    def _answer_heartbeat(self) -> None:
        self._session.heartbeat()

    def _answer_artifacts(self) -> Any:
        return self._session.artifacts()

    def _answer_checkpoint(self) -> Any:
        return self._session.checkpoint

    def _answer_all_checkpoints(self, timeout_s: float | None) -> Any:
        return self._session.all_checkpoints(timeout_s)
