from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpctrain.control import local_socket
from hpctrain.control.hub import Hub
from hpctrain.control.link import Link
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame, FrameSocket, encode_frame
from hpctrain.execute.agent import Agent
from hpctrain.execute.health import Health
from tests.waiting import wait_until

PATIENCE_S = 10.0
AGENT_OF_ANOTHER_VERSION = """
import sys
from hpctrain.control import wire
wire.PROTOCOL += 1
from hpctrain.execute.agent import run_agent
run_agent(sys.argv[1:])
"""
MAKE_CHECKPOINT = """
import os, signal, sys, tempfile
from hpctrain import Checkpoint
tempfile.tempdir = sys.argv[1]
checkpoint = Checkpoint.from_dict({"a": 1})
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Uplink:
    """The executor's end of an agent's connection, and where the agent listens."""

    frames: FrameSocket
    name: str
    thread: threading.Thread

    def receive(self, count: int) -> list[Frame]:
        received: list[Frame] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(received) < count:
            assert time.monotonic() < deadline, f"only {received}"
            received += [frame for frame in self.frames.receive() if frame.op != "beat"]
        return received

    def send(self, op: str, **details: object) -> None:
        self.frames.post(encode_frame({"op": op, "attempt": 1, **details}))

    def connect(self, rank: int) -> Link:
        sock = local_socket.connect(self.name, timeout_s=PATIENCE_S)
        link = Link(sock, attempt=1, on_lost=lambda: None)
        link.introduce(rank, {"tmp": "/tmp", "tmp_owner": "", "pid": 0})
        return link

    def connect_spare(self, name: str) -> Link:
        sock = local_socket.connect(self.name, timeout_s=PATIENCE_S)
        link = Link(sock, attempt=2, on_lost=lambda: None)
        link.post("waiting", spare=name)
        return link


def test_an_agent_imports_no_more_than_it_needs() -> None:
    # Each node of a job starts one, and most of what it costs is its imports.
    program = "import hpctrain.execute.agent, hpctrain.control.proof, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    heavy = {"ctypes", "dataclasses", "difflib", "inspect", "secrets", "subprocess", "tempfile"}
    # For errors alone.
    heavy |= {"sysconfig", "traceback"}
    assert loaded & heavy == set(), done.stderr
    assert {name for name in loaded if name.startswith("hpctrain.rundir")} == set()


@pytest.fixture
def uplink() -> Iterator[Uplink]:
    mine, agents = socket.socketpair()
    name = local_socket.new_socket_name()
    agent = Agent(attempt=1, uplink=agents, socket_name=name)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    uplink = Uplink(FrameSocket(mine), name, thread)
    yield uplink
    uplink.send("agent-exit")
    thread.join(PATIENCE_S)
    uplink.frames.close()
    assert not thread.is_alive()


def said(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame.op, frame.header.get("rank", -1)) for frame in frames]


def test_an_agent_says_on_which_node_it_is(uplink: Uplink):
    (frame,) = uplink.receive(1)
    assert (frame.op, frame.header["node"]) == ("agent", socket.gethostname())


def test_an_agent_removes_temporary_checkpoints_of_the_dead_before_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    killed = subprocess.Popen([sys.executable, "-c", MAKE_CHECKPOINT, str(tmp_path)])
    killed.wait()
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    uplink = request.getfixturevalue("uplink")
    # It listens before it says its name.
    uplink.receive(1)
    assert not list(tmp_path.iterdir())


def test_what_ranks_say_is_passed_up_as_it_is(uplink: Uplink):
    uplink.receive(1)
    link = uplink.connect(3)
    link.post("answer", b"x" * 2**20, call=1)
    hello, answer = uplink.receive(2)
    assert said([hello, answer]) == [("hello", 3), ("answer", 3)]
    assert answer.body == b"x" * 2**20
    link.post("bye")
    link.close()
    assert said(uplink.receive(1)) == [("bye", 3)]


def test_commands_reach_the_ranks_that_they_are_for(uplink: Uplink):
    uplink.receive(1)
    links = [uplink.connect(rank) for rank in (4, 5)]
    uplink.receive(2)
    uplink.send("call", ranks=[5, 6])
    uplink.send("exit")
    for link, expected in zip(links, (["exit"], ["call", "exit"]), strict=True):
        for op in expected:
            command = link.next_command()
            assert command is not None
            assert command.op == op
        link.post("bye")
        link.close()


def test_a_rank_that_dies_is_lost_and_one_that_said_bye_is_not(uplink: Uplink):
    uplink.receive(1)
    dying, leaving = uplink.connect(0), uplink.connect(1)
    uplink.receive(2)
    leaving.post("bye")
    leaving.close()
    assert said(uplink.receive(1)) == [("bye", 1)]
    dying.close()
    assert said(uplink.receive(1)) == [("lost", 0)]


def test_ranks_wait_until_the_attempt_that_is_theirs_begins(uplink: Uplink):
    uplink.receive(1)
    links = {name: uplink.connect_spare(name) for name in ("ours", "others", "dying")}
    assert [f.header["spare"] for f in uplink.receive(3)] == [*links]
    # Nothing of the attempt that runs is for them, and the end of one is no loss.
    uplink.send("call")
    uplink.send("exit")
    links["dying"].close()
    uplink.frames.post(encode_frame({"op": "begin", "attempt": 2, "spare": "ours"}))
    assert said(uplink.receive(1)) == [("agent", -1)]
    late = uplink.connect_spare("ours")
    for link, op in ((links["ours"], "begin"), (late, "begin"), (links["others"], "exit")):
        command = link.next_command()
        assert command is not None
        assert (command.op, command.header["attempt"]) == (op, 2)
    links["ours"].introduce(0, {"tmp": "/tmp", "tmp_owner": "", "pid": 0})
    assert [frame.op for frame in uplink.receive(2)] == ["waiting", "hello"]
    # From here on it is a rank as others are.
    for link in (links["others"], late, links["ours"]):
        link.close()
    assert said(uplink.receive(1)) == [("lost", 0)]


def test_ranks_that_wait_are_let_go_when_the_executor_is_gone(uplink: Uplink):
    uplink.receive(1)
    link = uplink.connect_spare("ours")
    uplink.receive(1)
    uplink.frames.close()
    assert link.next_command() is None
    link.close(timeout_s=0.0)


def test_ranks_are_let_go_when_the_executor_is_gone(uplink: Uplink):
    uplink.receive(1)
    link = uplink.connect(0)
    uplink.receive(1)
    uplink.frames.close()
    assert link.next_command() is None
    link.close(timeout_s=0.0)


def test_an_agent_looks_at_the_processes_of_its_own_ranks_only(uplink: Uplink, tmp_path: Path):
    uplink.receive(1)
    link = uplink.connect(3)
    link.post("starting", pid=os.getpid(), launched_as=3)
    uplink.receive(2)
    # Ranks 4 and 5 live on other nodes, where 4 has a pid that rank 3 has here.
    pids = {3: os.getpid(), 4: os.getpid(), 5: 1}
    uplink.send("examine", run=str(tmp_path), silent=[4, 3, 5], pids=pids)
    (seen,) = uplink.receive(1)
    assert said([seen]) == [("examined", 3)]
    assert "lives but runs no Python" in seen.header["reason"]
    link.post("bye")
    link.close()


def test_an_agent_answers_for_a_heartbeat_with_what_its_ranks_use(uplink: Uplink) -> None:
    uplink.receive(1)
    link = uplink.connect(0)
    uplink.receive(1)
    uplink.send("beat")
    deadline = time.monotonic() + PATIENCE_S
    beats: list[Frame] = []
    # One that it sends by itself says nothing.
    while not any(frame.header.get("use") for frame in beats):
        assert time.monotonic() < deadline, f"only {beats}"
        beats += [frame for frame in uplink.frames.receive() if frame.op == "beat"]
    (use,) = [frame.header["use"] for frame in beats if frame.header.get("use")]
    assert use["cpus"] == len(os.sched_getaffinity(0))
    assert use["memory_limit"] > 0
    link.post("bye")
    link.close()
    uplink.receive(1)


def test_an_agent_of_another_version_says_why_its_node_cannot_be_used(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    hub = Hub(attempt=1)
    credentials = Credentials(b"s" * 32, run=str(tmp_path), attempt=1)
    addresses = hub.listen_tcp(credentials, only_here=True, fanout=2, num_agents=1)
    where = ["1", local_socket.new_socket_name(), str(secret), "--lease=600", "--tree", *addresses]
    argv = [sys.executable, "-c", AGENT_OF_ANOTHER_VERSION, *where]
    environment = {**os.environ, "SLURMD_NODENAME": "node7"}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        wait_until(lambda: hub.poll(0.1) == [] and agent.poll() is not None)
        printed = agent.stderr.read()
    hub.close()
    assert agent.returncode == 1
    health = Health(num_nodes=1)
    health.read(printed)
    ((node, reason),) = health.verdict().bad.items()
    assert node == "node7"
    assert reason.startswith("it imports another hpctrain than the executor")
