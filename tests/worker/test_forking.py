"""The fork server's loop, by parts: `test_fork_server.py` has it whole, with real processes."""

from __future__ import annotations

import socket
import threading

from hpctrain.worker.forking import ForkServer

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
