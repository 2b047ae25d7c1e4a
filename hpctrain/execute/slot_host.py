"""What holds the step of a slot: ``python -m hpctrain.execute.slot_host``.

A tuner in an allocation starts it by srun, with the CPUs, GPUs and memory of a slot on a node, and
trials begin in it one after another. Their executors connect over TCP and ask for their agent,
which is forked from here, and for mpiexec, or its proxy of this node, whose ranks are forked from a
process that has imported what they need. So a trial asks Slurm for no step, and imports nothing.

The first line on standard input says what srun was given, the first one on standard output how the
step is reached. Once the standard input ends, as with the tuner, and no executor is connected, the
process ends, and with it the step.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from hpctrain import environ
from hpctrain.control.listener import listen_tcp
from hpctrain.control.proof import Seal
from hpctrain.control.strangers import Strangers
from hpctrain.control.wire import Frame, FrameSocket
from hpctrain.execute.fork_server import ForkServers
from hpctrain.execute.process import descendants, process_start_time
from hpctrain.execute.slot_job import OF_RANKS, SlotJob
from hpctrain.execute.slot_request import SECRET_BYTES, credentials, digest_variables
from hpctrain.worker.forked import show_command
from hpctrain.worker.leftovers import remove_dead_segments_since
from hpctrain.worker.parent_death import end_with

MODULE = "hpctrain.execute.slot_host"
PADDING = "-" * 4096
"""Room for the command of an agent in the arguments of the process, whose forks show it there."""
_STDIN = 0
_BACKLOG = 64
_TICK_S = 1.0
_BUSY_TICK_S = 0.02
_CLEANUPS = 20
# man 2 PR_SET_CHILD_SUBREAPER
_PR_SET_CHILD_SUBREAPER = 36
# Python sets it itself in a C locale (PEP 538).
_OF_PYTHON = ("LC_CTYPE",)


class SlotHost:
    """Starts agents and ranks in this step.

    Parameters
    ----------
    given
        Of `digest_variables`: what srun was given. The rest of the environment is the step's.
    """

    def __init__(self, given: Mapping[str, int]) -> None:
        own = environ.environment()
        digests = digest_variables(own)
        self._of_step = {
            name: value
            for name, value in own.items()
            if given.get(name) != digests[name] and name not in _OF_PYTHON
        }
        # As those of GPUs, in a step without.
        self._not_of_step = given.keys() - own.keys()
        secret = secrets.token_bytes(SECRET_BYTES)
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers(self._selector, credentials(secret), self._admit)
        self._listener, addresses = listen_tcp(backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.reached_by = {"addresses": addresses, "secret": secret.hex()}
        """How executors connect."""
        self._jobs: list[SlotJob] = []
        self._forks: ForkServers | None = None
        self._asked: object = None
        self._is_orphan = False
        self._collected_at = 0.0
        self._begun = time.time()
        self._selector.register(
            self._listener,
            selectors.EVENT_READ,
            lambda _: self._strangers.accept(self._listener, time.monotonic()),
        )
        self._selector.register(_STDIN, selectors.EVENT_READ, self._look_at_tuner)

    def run(self) -> None:
        """Serve until the tuner has let go of the slot, and no executor uses it."""
        while self._jobs or not self._is_orphan:
            is_busy = any(job.has_more for job in self._jobs)
            for key, mask in self._selector.select(_BUSY_TICK_S if is_busy else _TICK_S):
                key.data(mask)
            for job in [*self._jobs]:
                job.flush()
                if job.is_over:
                    self._jobs.remove(job)
                    self._end_leftovers()
                    # Of ranks that were killed in MPI_Init, as with their executor. Their worlds
                    # have names of mpiexec's, which no later rank can know.
                    remove_dead_segments_since(self._begun)
            self._strangers.drop_silent(time.monotonic())
            self._collect_orphans(time.monotonic())
        self._strangers.close()
        if self._forks is not None:
            self._forks.close()
        self._end_leftovers()
        remove_dead_segments_since(self._begun)

    def _look_at_tuner(self, _: int) -> None:
        with suppress(OSError):
            if os.read(_STDIN, 4096):
                return
        self._selector.unregister(_STDIN)
        self._is_orphan = True

    def _admit(self, sock: socket.socket, seal: Seal) -> None:
        self._jobs.append(SlotJob(FrameSocket(sock, seal), self._selector, self._start))

    def _start(self, job: SlotJob, frame: Frame) -> None:
        """Start what an executor has asked for."""
        asked = json.loads(frame.body)
        environment = {**asked["environment"], **self._of_step, **asked["of_rank"]}
        for name in (*self._not_of_step, *asked["without"]):
            environment.pop(name, None)
        if asked["agent"]:
            host = os.getpid()
            if job.fork(self._let_go):
                _become_agent(asked, environment, host=host)
            return
        forks = self._forks_for(asked, environment)
        job.execute(asked, environment, forks)

    def _forks_for(
        self, asked: Mapping[str, list[str]], environment: dict[str, str]
    ) -> ForkServers:
        imported = asked["modules"], asked["own_places"], asked["dispensable"]
        if self._forks is None or imported != self._asked:
            if self._forks is not None:
                self._forks.close()
            self._asked = imported
            self._forks = ForkServers(
                imported[0],
                own_places=imported[1],
                environment=environment,
                dispensable=imported[2],
            )
        return self._forks

    def _let_go(self) -> None:
        """Close, in a fork, what belongs to this process."""
        self._selector.close()
        self._listener.close()
        self._strangers.abandon()
        if self._forks is not None:
            self._forks.abandon()
        for job in self._jobs:
            job.abandon()

    def _collect_orphans(self, now: float) -> None:
        """Collect what ranks have started and left behind, and what has ended by itself."""
        if now - self._collected_at < _TICK_S:
            return
        self._collected_at = now
        with suppress(OSError):
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
            used = self._used()
            for pid in descendants(os.getpid()):
                if pid not in used:
                    _collect(pid)

    def _end_leftovers(self) -> None:
        """End what ranks have started and left behind, as Slurm does at the end of a step."""
        for _ in range(_CLEANUPS):
            # Before those that are in use: what these start meanwhile is in neither.
            left = descendants(os.getpid())
            used = self._used()
            # What has begun later may be of other ranks, whichever parent it has by now.
            since = min((job.ranks_since for job in self._jobs), default=math.inf)
            left = [pid for pid in left if pid not in used and _begin_of(pid) < since]
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                _collect(pid)
            time.sleep(_BUSY_TICK_S)

    def _used(self) -> set[int | None]:
        """Return the processes that the fork server and the jobs need."""
        used = {None if self._forks is None else self._forks.pid}
        return used.union(*(job.processes() for job in self._jobs))


def _collect(pid: int) -> None:
    """Collect a process that has ended, unless another one is still its parent."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _begin_of(pid: int) -> float:
    # One that has ended is collected.
    return process_start_time(pid) or 0


def _become_agent(
    asked: Mapping[str, list[str]], environment: Mapping[str, str], *, host: int
) -> None:
    """Be the agent of an executor in this fork, and end as it does."""
    from hpctrain.execute.agent import run_agent

    status = 1
    try:
        # Without the host, its frames would refer to ranks that are no longer tracked.
        end_with(host)
        environ.replace_environment(environment)
        os.chdir(str(asked["cwd"]))
        command = asked["command"]
        show_command(command)
        sys.orig_argv[:], sys.argv[:] = command, command[2:]
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        run_agent(command[3:])
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            os.write(2, f"{end.code}\n".encode())
        else:
            status = end.code or 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    os._exit(status)


def main() -> None:
    """Hold the step of this process's slot. Not collective."""
    # Slurm's warnings reach every process of a step, and are for the ranks. No SIG_IGN, which
    # ranks would inherit.
    for number in (*OF_RANKS, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # What ranks leave behind becomes a child of this process, and is found.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    show_command([*sys.orig_argv[:3]])
    host = SlotHost(json.loads(sys.stdin.readline() or "{}"))
    # Forks begin with it.
    import hpctrain.execute.agent  # noqa: F401

    sys.stdout.write(json.dumps(host.reached_by) + "\n")
    sys.stdout.flush()
    gc.freeze()
    host.run()


if __name__ == "__main__":
    main()
