"""In which order addresses of this machine are tried."""

from __future__ import annotations

import fcntl
import socket

import pytest

from hpctrain.control.interfaces import ipv4_addresses


def test_addresses_that_other_hosts_do_not_reach_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "lo": "127.0.0.1",
        "docker0": "172.17.0.1",
        "usb0": "169.254.3.1",
        "eth0": "10.0.0.7",
        "ib0": "10.1.0.7",
        "virbr0": "192.168.122.1",
    }
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(known, 1)))

    def ask(_: int, __: int, request: bytes) -> bytes:
        return bytes(20) + socket.inet_aton(known[request.rstrip(b"\0").decode()])

    monkeypatch.setattr(fcntl, "ioctl", ask)
    assert list(ipv4_addresses()) == ["eth0", "ib0", "docker0", "usb0", "virbr0", "lo"]
