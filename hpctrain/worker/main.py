"""The process of one MPI rank: ``python -m hpctrain.worker.main RUN ATTEMPT SIZE SOCKET``.

It joins the MPI world, introduces itself to the agent of its node, and then follows the commands
of the executor: call a function, train, leave.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from hpctrain import environ, timeouts
from hpctrain.control import local_socket, wire
from hpctrain.control.link import Link, LinkTimeoutError
from hpctrain.control.wire import Frame
from hpctrain.errors import HpctrainError
from hpctrain.log import flush_output, log, log_traceback
from hpctrain.own_files import open_log
from hpctrain.plan import spec
from hpctrain.plan.process_argv import SPARE
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.temporary_checkpoint import remove_temporary_checkpoints, temporary_owner
from hpctrain.worker import mpi
from hpctrain.worker.bootstrap import join_world
from hpctrain.worker.early_imports import import_early
from hpctrain.worker.failure import LAST_WORDS, describe_exception, sendable
from hpctrain.worker.introduction import introduce
from hpctrain.worker.node_socket import node_socket_name
from hpctrain.worker.parent_death import has_ended, outlive_parent

if TYPE_CHECKING:
    from hpctrain.worker.linked_training import LinkedTraining
    from hpctrain.worker.mpi import Comm
    from hpctrain.world import World

# BSD's sysexits.h: EX_UNAVAILABLE. The executor is gone, so only a person reads it.
EXIT_EXECUTOR_LOST = 69


class Warnings:
    """Slurm's warnings: kept until the executor can act on them, and passed on from then on."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._post: Callable[[str], None] = self._kept.append
        self._numbers: set[signal.Signals] = set()
        self._of_thread = threading.local()
        os.register_at_fork(
            before=self._hold,
            after_in_parent=self._release,
            after_in_child=self._leave_to_parent,
        )

    def handle(self, *numbers: signal.Signals) -> None:
        """Take these signals for warnings: they no longer end the process."""
        for number in numbers:
            signal.signal(number, self._take)
        self._numbers.update(numbers)

    def pass_on(self, post: Callable[[str], None]) -> None:
        """Pass on what was kept, and what comes later."""
        self._post = post
        while self._kept:
            post(self._kept.pop(0))

    def ignore(self) -> None:
        """Ignore the signals from now on: no process is left to act on them."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def _hold(self) -> None:
        """Let SIGTERM wait: Python forgets one that a child takes before its action is set."""
        self._of_thread.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.before)

    def _leave_to_parent(self) -> None:
        """Let a process that this rank has forked pass nothing on, and be ended by its parent."""
        self._post = lambda _: None
        # multiprocessing.Pool ends its processes by SIGTERM, and waits for them. No handler that
        # spares them Slurm's SIGTERM would do: Python calls none in a process that has just begun
        # to wait for a lock. The other warnings, which Slurm sends to all processes, do nothing.
        if signal.getsignal(signal.SIGTERM) == self._take:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._release()

    def _take(self, number: int, _: FrameType | None) -> None:
        self._post(signal.Signals(number).name)


class Rank:
    """One rank's process: joins the MPI world, follows the executor's commands, exits."""

    def __init__(
        self, paths: RunPaths, *, attempt: int, link: Link, warnings: Warnings | None = None
    ) -> None:
        self._paths = paths
        self._warnings = warnings or Warnings()
        self._attempt = attempt
        self._link = link
        self._training: LinkedTraining | None = None
        self._world: World | None = None

    def join(self, *, size: int, inherit_output: bool) -> Comm:
        """Join the world and send a first frame. Collective."""
        self._link.post(
            "starting",
            pid=os.getpid(),
            hostname=socket.gethostname(),
            launched_as=environ.launched_rank(),
            not_forked=environ.take_not_forked(),
        )
        by_hydra = environ.is_launched_by_hydra()
        world, comm = join_world(attempt=self._attempt, fewest=size, most=size)
        self._world = world
        if not inherit_output:
            _redirect_output(self._paths.rank_log(self._attempt, world.world_rank))
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        faulthandler.enable()
        # Slurm's warnings: before the time limit USR2, or USR1 in many a person's own script, and
        # TERM at a preemption. The executor decides.
        self._warnings.handle(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
        if by_hydra:
            # hydra signals by it that another rank has died, which the executor learns anyway.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._link.handle("end", lambda _: _exit(0))
        introduce(self._link, self._paths, world)
        return comm

    def serve(self, comm: Comm) -> None:
        """Follow the commands of the executor until ``exit``."""
        while True:
            command = self._link.next_command()
            if command is None:
                return
            # Until all ranks have joined, the executor looks at nothing else.
            self._warnings.pass_on(self._link.post_signal)
            if command.op == "exit":
                self._link.post("bye")
                return
            if command.op == "call":
                self._call(command)
            elif command.op == "train":
                self._train(command, comm)

    def fail(self, error: BaseException) -> None:
        """Report why this rank fails, in its log and to the executor, and leave."""
        # First of all: the sockets of this process close when it ends, and then its peers fail too.
        if self._training is not None:
            self._training.post_failure(error)
        else:
            failure = describe_exception(
                error,
                rank=self._world.world_rank if self._world else -1,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                report=0,
                phase="mpi",
            )
            self._link.post("failed", json.dumps(failure.to_json()).encode())
        self._link.drain(timeout_s=timeouts.LAST_FRAMES_S)
        log(LAST_WORDS)
        log_traceback(error)
        flush_output()
        # Without MPI_Finalize, which would wait for ranks that wait for this one.
        _exit(1)

    def _call(self, command: Frame) -> None:
        try:
            function, args, kwargs = pickle.loads(command.body)
            answer: Any = (True, function(*args, **kwargs))
        except Exception as error:
            log_traceback(error)
            answer = (False, sendable(error))
        try:
            body = spec.pack(answer, what="the answer", max_bytes=wire.MAX_CONTENT_BYTES)
        except HpctrainError as error:
            body = spec.pack((False, error), what="the answer")
        self._link.post("answer", body, call=command.header["call"])

    def _train(self, command: Frame, comm: Comm) -> None:
        from hpctrain.checkpoint import Checkpoint
        from hpctrain.worker.linked_training import LinkedTraining
        from hpctrain.worker.seeding import seed_generators
        from hpctrain.worker.train import settle

        # One rank reads; the others get it through MPI, whatever their number.
        content = comm.bcast(self._read_spec(command) if comm.rank == 0 else None)
        run_spec = RunSpec.from_bytes(content)
        # One of perhaps thousands says what was edited.
        settle(run_spec.settings, sources=run_spec.sources, says_changes=comm.rank == 0)
        assert self._world is not None
        if run_spec.settings.seed is not None:
            # Another attempt draws other numbers: what it resumes from is not its beginning.
            seed_generators(run_spec.settings.seed, self._attempt, self._world.world_rank)
        resumed = command.header["checkpoint"]
        self._training = LinkedTraining(
            self._link,
            world=self._world,
            paths=self._paths,
            run_spec=run_spec,
            first_report=command.header["first_report"],
            checkpoint=None if resumed is None else Checkpoint(resumed),
        )
        self._training.run(comm)

    def _read_spec(self, command: Frame) -> bytes:
        from hpctrain.rundir.trust import read_spec

        return read_spec(self._paths, digest=command.header["spec"])


def run_rank(argv: list[str]) -> None:
    """Run a rank from its command line. Collective."""
    # A warning that comes in MPI_Init is to stop the run, not to end this process. Other signals do
    # end it there: launchers send them to a rank whose peers have died.
    warnings = Warnings()
    warnings.handle(signal.SIGUSR2)
    launcher, slot_host = os.getppid(), environ.take_slot_host()
    import_early(argv)
    paths, attempt, size = RunPaths(Path(argv[0])), int(argv[1]), int(argv[2])
    try:
        connection = _connect(argv[3], launcher, slot_host)
    except LinkTimeoutError as error:
        raise SystemExit(f"hpctrain: {error}") from error
    # From here on it leaves with its executor.
    outlive_parent()
    link = Link(connection, attempt=attempt, on_lost=_leave)
    rank = Rank(paths, attempt=attempt, link=link, warnings=warnings)
    _await_begin(link, argv)
    try:
        comm = rank.join(size=size, inherit_output="--inherit-output" in argv)
        rank.serve(comm)
    except BaseException as error:
        rank.fail(error)
    # The executor no longer acts on them, and MPI_Finalize waits for all ranks.
    warnings.ignore()
    link.close()
    # A rank that was killed at this very moment does not come, and no thread could report it.
    faulthandler.dump_traceback_later(timeouts.MPI_FINALIZE_S, exit=True)
    mpi.finalize()
    # What is registered for the end still happens, but the interpreter is not taken down module by
    # module, which costs half a second of CPU once torch is loaded.
    atexit._run_exitfuncs()
    flush_output()
    os._exit(0)


def _connect(template: str, launcher: int, slot_host: str = "") -> socket.socket:
    """Connect to the executor of this machine, or to the agent of this node."""
    name = node_socket_name(template)
    # An agent may start later than the ranks. The executor listens before it starts them, so where
    # no process does it is gone.
    timeout_s = timeouts.AGENT_OF_NODE_S if name != template else 0.0

    def why_give_up() -> str:
        # Where a node's processes are killed, its agent does not come any more. The launcher may
        # have been gone before this process could ask who it is.
        is_gone = os.getppid() != launcher or (slot_host and has_ended(slot_host))
        return "what has started this rank is gone" if is_gone else ""

    return local_socket.connect(name, timeout_s=timeout_s, why_give_up=why_give_up)


def _await_begin(link: Link, argv: list[str]) -> None:
    """Wait until the attempt of this rank begins, if it was started before that."""
    for word in argv[4:]:
        if word.startswith(SPARE):
            # All ranks have imported the same.
            stamps = _import_stamps() if environ.launched_rank() <= 0 else b""
            link.post("waiting", stamps, spare=word.removeprefix(SPARE))
            command = link.next_command()
            if command is None or command.op != "begin":
                _exit(0)


def _import_stamps() -> bytes:
    """Return when the files were changed that this process has imported, in JSON by path."""
    from hpctrain.worker.import_stamps import ImportStamps
    from hpctrain.worker.preload import origins

    return json.dumps(ImportStamps(()).after(origins())).encode()


def _leave() -> None:
    """Leave at once: without its executor a rank's work is not kept, and it holds a node."""
    log("the executor is gone; this rank leaves.")
    _exit(EXIT_EXECUTOR_LOST)


def _exit(status: int) -> NoReturn:
    """End this process at once, from any of its threads."""
    remove_temporary_checkpoints(tempfile.gettempdir(), temporary_owner())
    os._exit(status)


def _redirect_output(path: Path) -> None:
    try:
        descriptor = open_log(path)
    except OSError:
        from hpctrain.rundir.files import retry

        descriptor = retry(lambda: open_log(path), patience_s=timeouts.STORAGE_FAILOVER_S)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    run_rank(sys.argv[1:])
