"""Sockets between the processes of one user on one node."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

import pytest

from hpctrain.control import local_socket
from hpctrain.control.link import LinkTimeoutError

PATIENCE_S = 10.0
NOBODY = 65534


def as_nobody(listens: bool, name: str, until: int) -> int:
    """Fork a process of another user, which listens under a name or connects to it."""
    child = os.fork()
    if child:
        return child
    try:
        os.setuid(NOBODY)
        sock = socket.socket(socket.AF_UNIX)
        if listens:
            sock.bind(f"\0{name}")
            sock.listen()
        else:
            sock.connect(f"\0{name}")
        os.write(until, b"x")
        signalled = select.select([sock], [], [], PATIENCE_S)[0]
        os._exit(0 if signalled else 1)
    except BaseException:
        os._exit(2)


def test_a_process_of_the_user_connects_and_is_known_by_its_pid() -> None:
    name = local_socket.new_socket_name()
    with local_socket.listen(name, backlog=8) as listener:
        with local_socket.connect(name, timeout_s=PATIENCE_S) as sock:
            accepted = local_socket.accept(listener)
            assert accepted is not None
            with accepted:
                assert local_socket.peer_pid(accepted) == os.getpid()
                sock.sendall(b"x")
                assert accepted.recv(1) == b"x"
        assert name in Path("/proc/net/unix").read_text()
    # Nothing stays of it.
    assert name not in Path("/proc/net/unix").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("listens", [False, True], ids=["connects", "listens"])
def test_another_user_is_turned_away(listens: bool) -> None:
    name = local_socket.new_socket_name()
    ready, until = os.pipe()
    if listens:
        child = as_nobody(True, name, until)
        assert os.read(ready, 1) == b"x"
        with pytest.raises(LinkTimeoutError, match="listens"):
            local_socket.connect(name, timeout_s=0.05)
    else:
        with local_socket.listen(name, backlog=8) as listener:
            child = as_nobody(False, name, until)
            assert local_socket.accept(listener) is None
    # It has seen the connection, or the end of it.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(ready)
    os.close(until)
