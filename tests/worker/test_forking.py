"""The fork server's loop, by parts: `test_fork_server.py` has it whole, with real processes."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any

import pytest

from hpctrain.worker.forking import ForkServer
from hpctrain.worker.launched import read_launched

PATIENCE_S = 30.0


def test_a_server_does_not_wait_for_an_owner_that_has_not_read_its_refusals() -> None:
    listener, (owner, reader) = socket.socket(socket.AF_UNIX), socket.socketpair()
    with listener, owner, reader:
        server = ForkServer(listener, owner, before={}, printed=(b"", b""))

        def refuse() -> None:
            for rank in range(1000):
                server._tell_refusal(f"the launcher has set what a fork would not have: {rank}")

        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        refusing.join(PATIENCE_S)
        assert not refusing.is_alive()
        told = reader.recv(2**20)
        assert told.startswith(b'{"refused":')
        assert told.endswith(b"}\n"), "lines are whole"


def too_many(*_: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("call", ["socket.socketpair", "hpctrain.linux.pidfd_open"])
def test_a_server_without_descriptors_refuses_a_rank_and_serves_on(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, (owner, reader) = socket.socket(socket.AF_UNIX), socket.socketpair()
    client, ours = socket.socketpair()
    streams = [os.dup(number) for number in range(3)]
    with listener, owner, reader, client, ours:
        server = ForkServer(listener, owner, before={}, printed=(b"", b""))
        monkeypatch.setattr(call, too_many)
        reason = server._fork(client, read_launched(os.getpid()), streams)
        monkeypatch.undo()
        assert isinstance(reason, str)
        assert reason.endswith(": Too many open files")
        assert server._ranks == {}
    for stream in streams:
        os.close(stream)
