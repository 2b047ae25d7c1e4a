"""A stranger between the executor and its agents: nobody obeys him, and nobody believes him."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.control.hub import Hub
from hpctrain.control.interfaces import ipv4_addresses, is_loopback
from hpctrain.control.local_socket import new_socket_name
from hpctrain.control.proof import Credentials

PATIENCE_S = 60.0
SECRET = b"s" * 32
Start = Callable[..., None]

# Takes whoever connects for an agent, and has its ranks run something.
FALSE_EXECUTOR = """
import json, os, pickle, socket, struct

class Code:
    def __reduce__(self):
        return os.system, ("id",)

header, body = json.dumps({"op": "call", "attempt": 1, "call": 0}).encode(), pickle.dumps(Code())
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
agent, _ = listener.accept()
seen = b""
try:
    agent.sendall(os.urandom(32))
    seen += agent.recv(4096)
    agent.sendall(struct.pack(">II", len(header), len(body)) + header + body)
    while chunk := agent.recv(4096):
        seen += chunk
        if b'"op":"agent"' in seen:
            break
except OSError:
    pass
print("believed" if b'"op":"agent"' in seen else "refused", flush=True)
"""

# Lets agent and executor prove themselves to each other, and speaks then in the place of both.
RELAY = """
import json, select, socket, struct

def frame(body=b"", **header):
    text = json.dumps({"attempt": 1, **header}).encode()
    return struct.pack(">II", len(text), len(body)) + text + body

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
agent, _ = listener.accept()
executor = socket.create_connection(("127.0.0.1", int(input())))
agent.sendall(executor.recv(32))
executor.sendall(agent.recv(4096))
if select.select([executor], [], [], 1)[0]:
    agent.sendall(executor.recv(32))
print("relayed", flush=True)
executor.sendall(frame(op="agent", node="false") + frame(op="failed", rank=0, node="false"))
agent.sendall(2 * frame(op="call", call=0, body=b"pickle"))
for victim in executor, agent:
    try:
        while victim.recv(4096):
            pass
    except ConnectionResetError:
        pass
    print("dropped", flush=True)
"""

SILENT = """
import select, socket

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
input()
print("found" if select.select([listener], [], [], 0)[0] else "passed over", flush=True)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The executor's end."""
    hub = Hub(attempt=1)
    yield hub
    hub.close()


@pytest.fixture
def address(hub: Hub, tmp_path: Path) -> str:
    """Where the executor listens."""
    credentials = Credentials(SECRET, run=str(tmp_path), attempt=1)
    (address,) = hub.listen_tcp(credentials, only_here=True)
    return address


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Start]:
    """Start agents, as srun would."""
    secret = tmp_path / ".secret-1"
    secret.write_bytes(SECRET)
    agents = []

    def start(*addresses: str) -> None:
        command = [sys.executable, "-m", "hpctrain.execute.agent", "1", new_socket_name()]
        agents.append(subprocess.Popen([*command, str(secret), *addresses]))

    yield start
    for agent in agents:
        agent.kill()
        agent.wait()


def poll_until(hub: Hub, condition: Callable[[], object]) -> list[str]:
    """Let the executor listen until something has happened; return what it believes."""
    ops: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"nothing but {ops}"
        ops += [frame.op for frame in hub.poll(0.05)]
    return ops


def test_an_agent_obeys_no_executor_that_does_not_prove_itself(
    hub: Hub, address: str, start_agent: Start, stranger: Any
):
    attacker = stranger(FALSE_EXECUTOR)
    start_agent(f"127.0.0.1:{attacker.read()}", address)
    poll_until(hub, lambda: attacker.has_written)
    assert attacker.read() == "refused"
    # And goes on to the one that does.
    poll_until(hub, lambda: hub.nodes)


def test_who_passes_a_handshake_on_can_speak_for_neither_end(
    hub: Hub, address: str, start_agent: Start, stranger: Any
):
    attacker = stranger(RELAY)
    start_agent(f"127.0.0.1:{attacker.read()}")
    attacker.write(address.rpartition(":")[2])
    for verdict in "relayed", "dropped", "dropped":
        believed = poll_until(hub, lambda: attacker.has_written or "false" in hub.nodes)
        assert "failed" not in believed
        assert "false" not in hub.nodes
        assert attacker.read() == verdict


def test_no_other_node_is_given_a_loopback_address(hub: Hub, tmp_path: Path):
    hosts = [
        address.rpartition(":")[0]
        for address in hub.listen_tcp(Credentials(SECRET, run=str(tmp_path), attempt=1))
    ]
    outside = [address for address in ipv4_addresses().values() if not is_loopback(address)]
    # Without a network all nodes are this machine.
    assert hosts[1:] == outside if outside else hosts == ["127.0.0.1"]


def test_an_executor_whose_name_is_a_loopback_address_here_is_not_looked_for_here(
    hub: Hub, address: str, start_agent: Start, stranger: Any
):
    attacker = stranger(SILENT)
    start_agent(f"localhost:{attacker.read()}", address)
    poll_until(hub, lambda: hub.nodes)
    attacker.write("now")
    assert attacker.read() == "passed over"
