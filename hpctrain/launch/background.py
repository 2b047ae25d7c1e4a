"""A run in the background where there is no job for it: ``python -m hpctrain.launch.background``.

Its executor is a process in a session of its own, which outlives the script that has started it. On
one machine, and in one allocation, these run one after another, in the order in which they were
submitted: together they would share cores, or ask Slurm for the same ones. A trial of a sweep does
not wait: `hpctrain.tune` gives it a slot.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from hpctrain import environ
from hpctrain.errors import ConfigError, SupersededError
from hpctrain.execute.initial_status import initial_status
from hpctrain.execute.process import process_start_time
from hpctrain.execute.stored_executor import stored_executor
from hpctrain.execute.supervisor import report_end
from hpctrain.execute.tuner_socket import ExecutorEnd, TunerEnd, make_pair
from hpctrain.launch.executor_template import ExecutorTemplate
from hpctrain.launch.job_signals import warnings_of_slurm
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.own_files import open_log
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.rundir.trust import digest_spec

_POLL_S = 0.2
_LIFE_INTERVAL_S = 4.0
_STDIN = 0
_GO = b"\n"
_HAS_SLOT = "has-slot"
WAITS = "waiting for its turn"


@dataclass(frozen=True, kw_only=True)
class RunSlot:
    """What a run in the background has that begins at once."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its environment."""
    template: ExecutorTemplate
    """What forks its executor."""
    tuner: TunerEnd
    """Gets the socket to its executor."""
    fork_server: str = ""
    """Name of what forks its ranks; empty if they are to start without it."""


def start_in_background(submission: Submission, slot: RunSlot | None = None) -> None:
    """Start the executor of a run as a process of its own, and write down that it runs it.

    Not collective.

    Parameters
    ----------
    slot
        Of a run that does not wait for its turn; None if it waits.
    """
    paths, verbose = submission.request.paths, submission.request.run_config.verbose
    digest = digest_spec(submission.spec_content)
    turns = _turn_file() if slot is None else None
    argv = [sys.executable, "-u", "-m", "hpctrain.launch.background", str(paths.root), digest]
    with open(open_log(paths.executor_log), "ab") as output:
        argv += [] if slot is None else [_HAS_SLOT, slot.fork_server]
        pid, stdin = _start_process(argv, slot, output)
    with ExitStack() as stack:
        stack.enter_context(stdin)
        started = process_start_time(pid) or 0
        status = initial_status(paths, submission.plan, submission.request.run_config)
        status = status.with_changes(owner_pid=pid, owner_start=started)
        if turns is not None:
            with open(turns, "ab") as queue:
                queue.write(_ticket(pid, started))
            status = status.with_changes(phase=WAITS)
        RunRecord(paths).write(status)
        # Only now: what it writes itself comes later. Whether it lives is seen by its status.
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.send(_GO, socket.MSG_NOSIGNAL)
        if slot is not None:
            stack.pop_all()
            slot.tuner.keep(stdin)
    if verbose:
        name = paths.root.name
        log(f"started {name} as process {pid}: {paths.root}", to=sys.stdout)


def _start_process(
    argv: Sequence[str], slot: RunSlot | None, output: BinaryIO
) -> tuple[int, socket.socket]:
    """Start an executor; return its pid, and the socket that it waits for a byte from."""
    environment = environ.environment()
    if slot is not None:
        environment = {**environment, **slot.variables}
    stdin, its = make_pair()
    try:
        pid = None
        if slot is not None:
            pid = slot.template.fork(
                argv, environment=environment, stdin=its.fileno(), output=output.fileno()
            )
        if pid is None:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=its.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            pid = process.pid
            # Nothing else collects its exit status.
            threading.Thread(target=process.wait, daemon=True).start()
    except BaseException:
        stdin.close()
        raise
    finally:
        its.close()
    return pid, stdin


def run_in_background(
    paths: RunPaths, spec_digest: str, *, has_slot: bool = False, fork_server: str = ""
) -> int:
    """Run a run in this process, once those before it have ended; return the exit status.

    Not collective.

    Parameters
    ----------
    has_slot
        Whether it begins at once.
    fork_server
        As of `RunSlot`.
    """
    # Not by sys.stdin, which would take what comes later, too.
    if os.read(_STDIN, 1) != _GO:
        # The process that started this one died before it could write so in the run directory.
        return 1
    try:
        # As every executor: `hpctrain cancel --now` ends no process without it.
        with ExitStack() as stack:
            stack.enter_context(closing(HeldDirectory(paths)))
            if not has_slot:
                _await_turn(paths, stack.enter_context(open(_turn_file(), "a+b")))
            _own_status(paths)
            to_tuner = _replace_stdin()
            executor = stored_executor(paths, spec_digest, fork_server=fork_server)
            if has_slot:
                executor.recorder.tuner = tuner = ExecutorEnd(to_tuner)
                stack.callback(tuner.close)
            with warnings_of_slurm(executor.signals.append):
                executor.run()
    except BaseException as error:
        return report_end(error)
    return 0


def _replace_stdin() -> int:
    """Let what reads the standard input find its end; return the socket that it was.

    A program that a callback starts would wait for what the tuner writes, and take it.
    """
    to_tuner = os.dup(_STDIN)
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return to_tuner


def _await_turn(paths: RunPaths, turn: BinaryIO) -> None:
    """Wait until no other run of this user is in the background here, or this one is to stop."""
    write_at = time.monotonic() + _LIFE_INTERVAL_S
    while not paths.stop_request.exists():
        with suppress(BlockingIOError):
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_next(turn):
                return
            fcntl.flock(turn, fcntl.LOCK_UN)
        time.sleep(_POLL_S)
        if time.monotonic() > write_at:
            # Other hosts see by it that this process lives.
            if (status := _own_status(paths)) is not None:
                RunRecord(paths).write(status)
            write_at = time.monotonic() + _LIFE_INTERVAL_S


def _own_status(paths: RunPaths) -> RunStatus | None:
    """Return the status of the run, which names this process; None if there is none.

    Raises
    ------
    SupersededError
        If it names another one, which has taken the run over while this one stood still.
    """
    status, own = read_status(paths), (socket.gethostname(), os.getpid())
    # One that was damaged names none.
    if status is not None and status.owner_pid and (status.owner_host, status.owner_pid) != own:
        raise SupersededError(
            f"process {own[1]} on {own[0]} was to begin run {paths.root.name!r} in "
            f"{paths.root.parent}, and does not run it any more. Follow it: hpctrain attach "
            f"{paths.root}"
        )
    return status


def _ticket(pid: int, started: int) -> bytes:
    return b"%d %d\n" % (pid, started)


def _is_next(turn: BinaryIO) -> bool:
    """Return whether those that were submitted before this process have ended."""
    own = _ticket(os.getpid(), process_start_time(os.getpid()) or 0)
    turn.seek(0)
    return not any(_lives(ticket) for ticket in takewhile(lambda line: line != own, turn))


def _lives(ticket: bytes) -> bool:
    try:
        pid, started = map(int, ticket.split())
    except ValueError:  # a full disk cut it off
        return False
    return process_start_time(pid) == started


def _turn_file() -> Path:
    """Return a file on a disk of this host, one for each user and job.

    It is locked by the run whose turn it is, and lists all in the order of their submission.
    """
    job = environ.variable("SLURM_JOB_ID") or "none"
    folder = Path(tempfile.gettempdir()) / f"hpctrain-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}, in which runs in the background take turns, cannot be made: "
            f"{error.strerror}. Set TMPDIR to a directory of your own."
        ) from error
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ConfigError(
            f"{folder}, in which runs in the background take turns, belongs to another user. Set "
            f"TMPDIR to a directory of your own."
        )
    return folder / f"turn-of-job-{job}"


def main(argv: Sequence[str]) -> int:
    """Do what the command of an executor in the background does; return its exit status.

    Not collective.
    """
    _, root, digest, *of_slot = argv
    return run_in_background(
        RunPaths(Path(root)),
        digest,
        has_slot=bool(of_slot),
        fork_server=of_slot[1] if of_slot else "",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
