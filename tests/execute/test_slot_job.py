"""What one connection of an executor starts in the step of a slot."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpctrain.control.wire import Frame, FrameSocket, encode_frame
from hpctrain.execute.slot_job import SlotJob

TIMEOUT_S = 60.0


class Connection:
    """A job, and the executor at the other end of its connection."""

    def __init__(self, begin: Callable[[SlotJob], None]) -> None:
        ours, theirs = socket.socketpair()
        self.selector = selectors.DefaultSelector()
        self.executor, self.client = FrameSocket(ours), FrameSocket(theirs)
        self.job = SlotJob(self.client, self.selector, lambda job, _: begin(job))
        self.executor.post(encode_frame({"op": "start"}))

    def turn(self, timeout_s: float = 0.01) -> int:
        """Do what is to be done now; return how much that was."""
        ready = self.selector.select(timeout_s)
        for key, mask in ready:
            key.data(mask)
        self.job.flush()
        return len(ready)

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline
            self.turn()

    def close(self) -> None:
        self.executor.close()
        self.turn_until(lambda: self.job.is_over)
        self.selector.close()


@pytest.fixture
def connect() -> Iterator[Callable[[Callable[[SlotJob], None]], Connection]]:
    made = []

    def connect(begin: Callable[[SlotJob], None]) -> Connection:
        made.append(Connection(begin))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def launch(script: str) -> Callable[[SlotJob], None]:
    """Return what starts a script in the place of a launcher of ranks."""
    forks = Mock()
    forks.offer.return_value = ""
    forks.take_reasons.return_value = []
    asked: dict[str, Any] = {"argv": ["sh", "-c", script], "command": ["a-rank"], "cwd": "/"}
    return lambda job: job.execute(asked, os.environ, forks)


def fork(job: SlotJob) -> None:
    if job.fork(lambda: None):
        time.sleep(TIMEOUT_S)
        os._exit(0)


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("begin", [launch("sleep 600"), fork])
@pytest.mark.parametrize("call", ["pipe", "pidfd_open"])
def test_what_cannot_be_started_is_refused_and_nothing_of_it_stays(
    connect: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[SlotJob], None],
    call: str,
) -> None:
    """The process serves other trials, and goes on."""
    connection = connect(begin)
    before, before_files = children(), len(os.listdir("/proc/self/fd"))

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        connection.turn_until(lambda: connection.job.is_over)
    (refused,) = connection.executor.receive()
    assert refused.op == "refused"
    assert refused.header["reason"] == "it cannot start a process: Too many open files"
    assert children() == before
    # That of the connection is gone, and perhaps some that the collector closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before_files - 1


def test_a_fork_that_cannot_let_go_ends(connect: Callable[..., Connection]) -> None:
    def let_go() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    connection = connect(lambda job: fork_with(job, let_go))
    frames: list[Frame] = []

    def has_ended() -> bool:
        frames.extend(connection.executor.receive())
        return any(frame.op == "ended" for frame in frames)

    connection.turn_until(has_ended)
    assert [frame.op for frame in frames] == ["started", "ended"]
    assert frames[-1].header["status"] == 1


def fork_with(job: SlotJob, let_go: Callable[[], None]) -> None:
    job.fork(let_go)


def test_output_that_the_executor_does_not_take_waits_and_keeps_nobody_busy(
    connect: Callable[..., Connection],
) -> None:
    size = 8 * 2**20
    connection = connect(launch(f"head -c {size} /dev/zero"))
    connection.turn_until(lambda: connection.client.pending_bytes > 2**20)
    # What is ready once more after a turn in which nothing could be done.
    connection.turn()
    assert connection.turn(0.2) == 0
    received = 0
    has_ended = False

    def take() -> bool:
        nonlocal received, has_ended
        for frame in connection.executor.receive():
            received += len(frame.body)
            has_ended = has_ended or frame.op == "ended"
        return has_ended

    connection.turn_until(take)
    assert received == size


def test_a_process_that_ends_while_its_output_waits_is_collected(
    connect: Callable[..., Connection],
) -> None:
    connection = connect(launch("head -c 8000000 /dev/zero"))
    connection.turn_until(lambda: connection.client.pending_bytes > 2**20)
    connection.turn()
    connection.executor.close()
    connection.turn_until(lambda: connection.job.is_over)
    assert connection.job.processes() == set()
