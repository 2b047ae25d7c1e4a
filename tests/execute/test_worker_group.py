"""A WorkerGroup by itself: real MPI ranks that run functions."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain import ConfigError, LaunchError, ScalingConfig, WorkerError, WorkerGroup
from hpctrain.control import wire
from hpctrain.plan.resources import place_on_one_node
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.mpi


@pytest.fixture
def group() -> Iterator[WorkerGroup]:
    group = WorkerGroup(num_workers=3)
    yield group
    group.shutdown()


def test_execute_returns_by_rank_and_state_stays_between_calls(group: WorkerGroup) -> None:
    def remember(value: int) -> int:
        import sys

        sys.hpctrain_test = value  # type: ignore[attr-defined]
        return value

    def recall() -> tuple[int, int]:
        import os
        import sys

        return int(os.environ["HPCTRAIN_RANK"]), sys.hpctrain_test  # type: ignore[attr-defined]

    assert group.execute(remember, 5) == [5, 5, 5]
    assert group.execute_single(1, remember, value=7) == 7
    assert group.execute(recall) == [(0, 5), (1, 7), (2, 5)]
    pids = group.execute(os.getpid)
    assert len(set(pids)) == 3
    assert pids == [worker.pid for worker in group.workers]
    assert len(group) == 3


def test_an_exception_comes_back_as_it_is_and_the_group_lives_on(group: WorkerGroup) -> None:
    def divide(by: int) -> float:
        return 1 / by

    with pytest.raises(ZeroDivisionError):
        group.execute(divide, 0)
    assert group.execute(divide, 2) == [0.5, 0.5, 0.5]


def test_an_exception_that_cannot_be_read_again_comes_back_as_its_text(group: WorkerGroup) -> None:
    def fail() -> None:
        class TwoError(Exception):
            def __init__(self, first: str, second: str) -> None:
                super().__init__(f"{first} and {second}")

        raise TwoError("this", "that")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="TwoError: this and that"):
            group.execute(fail)
    assert group.execute(len, "two") == [3, 3, 3]


def test_a_value_that_cannot_be_read_again_is_the_answer_of_its_rank_alone(
    group: WorkerGroup,
) -> None:
    def give() -> object:
        import os

        class Unreadable:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return int, ("no number",)

        return Unreadable() if os.environ["HPCTRAIN_RANK"] == "0" else 1

    first, *others = group.execute_async(give)
    assert isinstance(first.exception(60), ValueError)
    assert [answer.result(60) for answer in others] == [1, 1]


def test_what_is_too_large_to_be_sent_is_an_error_and_the_group_lives_on(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit() -> None:
        from hpctrain.control import wire

        wire.MAX_CONTENT_BYTES = 10_000

    def make(size: int) -> bytes:
        return bytes(size)

    def measure(content: bytes) -> int:
        return len(content)

    group.execute(limit)
    with pytest.raises(ConfigError, match=r"the answer has 2.,... bytes .* and 10,000 can be sent"):
        group.execute(make, 20_000)
    monkeypatch.setattr(wire, "MAX_CONTENT_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"the call of .*measure.* has 2.,... bytes .* its path"):
        group.execute(measure, bytes(20_000))
    assert group.execute(measure, bytes(5000)) == [5000, 5000, 5000]


def test_children_of_a_rank_are_not_ranks(group: WorkerGroup) -> None:
    def child_world() -> str:
        import subprocess
        import sys

        code = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        ).stdout.strip()

    assert group.execute_single(0, child_world) == "1"


def test_a_rank_that_dies_during_a_call_is_named(group: WorkerGroup) -> None:
    def die() -> None:
        import os

        if os.environ["HPCTRAIN_RANK"] == "1":
            os._exit(3)

    with pytest.raises(WorkerError, match=r"rank 1 of 3 on .* died during the call"):
        group.execute(die)


def test_misuse_is_an_error() -> None:
    group = WorkerGroup(num_workers=1)
    with pytest.raises(ValueError, match="is started already"):
        group.start()
    with pytest.raises(ValueError, match="rank=1, but this group has the ranks 0 to 0"):
        group.execute_single(1, os.getpid)
    with pytest.raises(ConfigError, match=r"add_workers\(num_workers=...\) is 0"):
        group.add_workers(0)
    with pytest.raises(ValueError, match="rank=1, but this group has the ranks 0 to 0"):
        group.remove_workers([1])
    with pytest.raises(ConfigError, match=r"remove_workers\(\[0\]\) would leave no rank"):
        group.remove_workers([0, 0])
    group.shutdown()
    group.shutdown()
    with pytest.raises(ValueError, match="is not started"):
        group.execute(os.getpid)
    group.start()
    assert group.execute(os.getpid) == [worker.pid for worker in group.workers]
    group.shutdown()


def test_calls_that_are_not_waited_for_run_on_ranks_at_the_same_time(group: WorkerGroup) -> None:
    def touch_and_wait(mine: str, others: str) -> bool:
        import time
        from pathlib import Path

        Path(mine).touch()
        end = time.monotonic() + 30
        while not Path(others).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return Path(others).exists()

    with tempfile.TemporaryDirectory() as directory:
        first, second = f"{directory}/0", f"{directory}/1"
        answers = [
            group.execute_single_async(0, touch_and_wait, first, second),
            group.execute_single_async(1, touch_and_wait, second, first),
        ]
        last = group.execute_async(os.getpid)
        assert [pid.result() for pid in reversed(last)][::-1] == [w.pid for w in group.workers]
        assert [answer.result(timeout=60) for answer in answers] == [True, True]
    slow = group.execute_single_async(2, time.sleep, 1)
    with pytest.raises(concurrent.futures.TimeoutError):
        slow.result(timeout=0.01)
    assert isinstance(group.execute_single_async(0, int, "x").exception(), ValueError)
    assert slow.result() is None


def test_a_group_that_cannot_start_says_what_the_launcher_said(tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(
        "#!/bin/sh\ncase $1 in --version) echo HYDRA;; *) echo no slots >&2; exit 7; esac\n"
    )
    mpiexec.chmod(0o755)
    with pytest.raises(
        LaunchError, match="mpiexec ended with status 7 after 0 of 2 ranks"
    ) as caught:
        WorkerGroup(num_workers=2, mpi=str(mpiexec))
    assert "no slots" in str(caught.value)


@pytest.mark.slurm
def test_a_group_in_an_allocation_spans_its_nodes(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    script = tmp_path / "group.py"
    script.write_text(
        """
import socket
from hpctrain import ScalingConfig, SlurmConfig, WorkerGroup
from hpctrain.plan.resources import NodeShape, place_workers

scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2))
group = WorkerGroup(placement=place_workers(scaling, NodeShape()), in_allocation=True)
group.start()
print(group.hostnames, group.execute(socket.gethostname))
group.shutdown()
group = WorkerGroup(placement=place_workers(scaling, NodeShape()), in_allocation=True)
group.start()   # the same allocation serves again and again
print("again", group.execute_single(3, socket.gethostname))
group.shutdown()
"""
    )
    done = subprocess.run(
        ["salloc", "--quiet", "-N2", "--ntasks-per-node=2", sys.executable, str(script)],
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, again = done.stdout.splitlines()
    hosts = first.split("'")[1::2]
    assert len(set(hosts)) == 2
    assert hosts[2:] == [hosts[0], hosts[0], hosts[1], hosts[1]], "ranks lie in blocks"
    assert again == f"again {hosts[1]}"


@pytest.mark.slurm
def test_the_agents_of_nodes_serve_the_next_group_too_unless_they_are_gone(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    script = tmp_path / "groups.py"
    script.write_text(
        """
import os, signal, socket
from pathlib import Path
from hpctrain import ScalingConfig, SlurmConfig, WorkerGroup
from hpctrain.errors import WorkerError
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.plan.resources import NodeShape, place_workers
from hpctrain.rundir.paths import RunPaths

root = Path("run")
root.mkdir()
placement = place_workers(ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)), NodeShape())
agents = NodeAgents(RunPaths(root))

def start(attempt):
    group = WorkerGroup(
        placement=placement, in_allocation=True, agents=agents, path=root, attempt=attempt
    )
    group.start(60)
    return group, agents.step.pid

group, first = start(1)
try:
    group.execute_single(3, os.kill, group.workers[3].pid, signal.SIGKILL)
except WorkerError as error:
    print(error.rank)
group.shutdown(0)
group, second = start(2)
print(second == first, len(set(group.execute(socket.gethostname))))
# It takes a while to die, as one that holds the GIL or has much memory.
group.execute_single(0, os.kill, group.workers[1].pid, signal.SIGSTOP)
group.shutdown(0)
group, third = start(3)
print(third == second)
group.shutdown()
agents.step.kill()
group, fourth = start(4)
print(fourth == third, len(set(group.execute(socket.gethostname))))
group.shutdown()
agents.close(10)
print([path.name for path in root.glob(".secret*")], len(list(root.glob("logs/*/agents.out"))))
"""
    )
    done = subprocess.run(
        ["salloc", "--quiet", "-N2", "--ntasks-per-node=2", sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3", "True 2", "True", "False 2", "[] 2"]


def test_ranks_are_added_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    def world() -> tuple[int, int]:
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1)

    group = WorkerGroup(num_workers=1)
    try:
        first = group.execute(os.getpid)
        group.add_workers(2)
        assert len(group) == len(group.workers) == 3
        assert group.execute(world) == [(0, 3), (1, 3), (2, 3)]
        assert not {*first} & {*group.execute(os.getpid)}
        group.remove_workers([0, 2, 0])
        assert group.execute(world) == [(0, 1)]
        group.remove_workers([])
    finally:
        group.shutdown()
    logged = capsys.readouterr().err
    assert "add_workers(2): all ranks start anew, as one MPI world of 3." in logged
    assert "remove_workers([0, 2]): all ranks start anew, as one MPI world of 1." in logged


def test_a_group_on_nodes_that_it_was_given_keeps_its_ranks(tmp_path: Path) -> None:
    placed = WorkerGroup(placement=place_on_one_node(ScalingConfig(num_workers=2)), path=tmp_path)
    with pytest.raises(ConfigError, match=r"nodes of this group were given to it.* 3 ranks"):
        placed.add_workers(1)


def test_a_call_that_a_shutdown_cuts_off_is_an_error(tmp_path: Path) -> None:
    def wait_for(path: str) -> None:
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.05)

    group = WorkerGroup(num_workers=1)
    try:
        quick = group.execute_async(os.getpid)
        cut_off = group.execute_async(wait_for, str(tmp_path / "never"))
        group.shutdown(patience_s=2)
        assert isinstance(quick[0].result(), int)
        with pytest.raises(WorkerError, match=r"was shut down during the call of .*wait_for"):
            cut_off[0].result()
    finally:
        group.shutdown()
