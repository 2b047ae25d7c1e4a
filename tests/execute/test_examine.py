from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpctrain import ScalingConfig
from hpctrain.control.hub import Hub
from hpctrain.control.local_socket import connect, new_socket_name
from hpctrain.control.wire import Frame, FrameSocket, encode_frame
from hpctrain.execute import examine as module
from hpctrain.execute.examine import Examiner, examine, find_py_spy
from hpctrain.execute.rank_group import RankGroup
from hpctrain.plan.resources import place_on_one_node
from hpctrain.rundir.paths import RunPaths
from tests.waiting import wait_until

SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", SLEEP]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_stopped_process_is_told_from_one_that_runs_and_one_that_is_gone(
    sleeper: subprocess.Popen[str],
) -> None:
    assert "lives but runs no Python" in examine(sleeper.pid).reason
    stop(sleeper)
    seen = examine(sleeper.pid)
    assert seen.reason == "its process is stopped (SIGSTOP, or Ctrl-Z)"
    assert "state: T (stopped)" in seen.text
    sleeper.kill()
    sleeper.wait(10)
    assert examine(sleeper.pid).reason == "its process is gone"


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_py_spy_shows_where_a_stopped_process_is(sleeper: subprocess.Popen[str]) -> None:
    stop(sleeper)
    assert "<module> (<string>:" in examine(sleeper.pid).text


def test_it_is_said_why_there_is_no_stack(
    sleeper: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "find_py_spy", lambda: None)
    assert "py-spy:\nnot installed: pip install" in examine(sleeper.pid).text
    # As py-spy says it where ptrace is not allowed.
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    refused.chmod(0o755)
    monkeypatch.setattr(module, "find_py_spy", lambda: refused)
    said = examine(sleeper.pid).text
    assert "py-spy:\nit did not work: Error: Permission Denied (kernel.yama.ptrace_scope: " in said


def test_an_examiner_looks_at_silent_ranks_first_and_writes_down_what_it_saw(
    sleeper: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_py_spy", lambda: None)
    stop(sleeper)
    examiner = Examiner()
    header = {"attempt": 2, "run": str(tmp_path), "silent": [7]}
    examiner.begin(Frame(header, b"", b""), {3: os.getpid(), 7: sleeper.pid})
    frames: list[Frame] = []
    deadline = time.monotonic() + 10
    while len(frames) < 2:
        assert time.monotonic() < deadline
        frames += examiner.frames()
    assert [frame.header["rank"] for frame in frames] == [7, 3]
    assert "is stopped" in frames[0].header["reason"]
    assert frames[1].body == b""
    assert "state: T" in RunPaths(tmp_path).stacks_of_rank(2, 7).read_text()
    assert not RunPaths(tmp_path).stacks_of_rank(2, 3).exists()


def test_agents_are_asked_about_any_number_of_ranks(tmp_path: Path) -> None:
    hub = Hub(attempt=1)
    name = new_socket_name()
    hub.listen_locally(name, measures=False)
    agent = FrameSocket(connect(name, timeout_s=10.0))
    agent.post(encode_frame({"op": "agent", "attempt": 1, "node": "node1"}))
    wait_until(lambda: hub.poll(0.1) == [] and hub.num_agents == 1, lambda: "no agent")
    step = SimpleNamespace(attempt=1, paths=RunPaths(tmp_path), is_slice=False)
    how = SimpleNamespace(step=step)
    group = RankGroup(
        place_on_one_node(ScalingConfig(num_workers=1)),
        how,  # type: ignore[arg-type]
        idle_nodes=(),
        agents=object(),  # type: ignore[arg-type]
        owns_agents=False,
        owns_path=False,
        begun=None,
    )
    group._hub = hub
    # Linux has pids up to 2 ** 22.
    pids = {rank: 2**22 - rank for rank in range(100_000)}
    received: list[Frame] = []

    def are_complete() -> bool:
        hub.poll(0.01)
        received.extend(agent.receive())
        return sum(len(frame.header.get("pids", ())) for frame in received) == len(pids)

    group.examine(pids, list(pids)[1:])
    wait_until(are_complete, lambda: f"{len(received)} frames")
    requests = [frame.header for frame in received if frame.op == "examine"]
    assert {int(rank): pid for h in requests for rank, pid in h["pids"].items()} == pids
    assert [rank for h in requests for rank in h["silent"]] == list(pids)[1:]
    # Each is whole by itself.
    assert all(set(h["silent"]) <= set(map(int, h["pids"])) for h in requests)
    agent.close()
    hub.close()
