"""Runs on five nodes whose agents relay: two of them are children of the executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode
from tests.clusters import own_cluster
from tests.runs import reported
from tests.waiting import wait_until

# Starts of ranks on five nodes, on a machine that is busy.
pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(240)]
TIMEOUT_S = 180
NUM_NODES = 5
STEPS = 12
PAUSES_AFTER = 7

# All ranks add up a gradient; the first attempt waits before a step, until the test lets it go on.
SCRIPT = """
import sys, time
from pathlib import Path
import hpctrain
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig,
)

def train(config):
    from mpi4py import MPI

    here, checkpoint = Path(config["here"]), hpctrain.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "slope": 0.0}
    context = hpctrain.get_context()
    rank, attempt = context.get_world_rank(), context.world.attempt
    while True:
        if attempt == 1 and state["step"] == config["pauses_after"]:
            (here / f"pauses-{rank}").touch()
            while not (here / "go").exists():
                time.sleep(0.02)
        gradient = MPI.COMM_WORLD.allreduce((state["slope"] - 3) * (rank + 1) / 15)
        state = {"step": state["step"] + 1, "slope": state["slope"] - 0.3 * gradient}
        saves = rank == 0 and state["step"] % 3 == 0
        hpctrain.report(
            {"step": state["step"], "slope": state["slope"].hex(), "attempt": attempt},
            Checkpoint.from_dict(state) if saves else None,
        )
        if hpctrain.should_stop():
            return state["step"]

DataParallelTrainer(
    train,
    train_loop_config={"here": sys.argv[1], "pauses_after": int(sys.argv[2])},
    scaling_config=ScalingConfig(num_workers=5),
    run_config=RunConfig(
        name="run", storage_path=sys.argv[1], verbose=0, stop={"step": int(sys.argv[3])},
        failure_config=FailureConfig(max_failures=1),
    ),
).fit()
"""


@pytest.fixture(scope="module")
def five_nodes() -> Iterator[VirtualCluster]:
    """Provide a cluster of five nodes."""
    with own_cluster(ClusterSpec(num_nodes=NUM_NODES, gpus_per_node=0, mode=best_mode())) as it:
        yield it


def start(cluster: VirtualCluster, folder: Path, fanout: int) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [
            *("salloc", "--quiet", f"--nodes={NUM_NODES}", "--ntasks-per-node=1"),
            *(sys.executable, str(script), str(folder), str(PAUSES_AFTER), str(STEPS)),
        ],
        env={**os.environ, **cluster.environ, "HPCTRAIN_HUB_FANOUT": str(fanout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def agents(folder: Path) -> dict[int, bool]:
    """Return the processes of the agents of a run, and whether they accept children."""
    found = {}
    for proc in Path("/proc").iterdir():
        with suppress(OSError):
            argv = (proc / "cmdline").read_text().split("\0")
            if argv[1:3] == ["-m", "hpctrain.execute.agent"] and str(folder) in " ".join(argv):
                found[int(proc.name)] = _listens(proc)
    return found


def _listens(proc: Path) -> bool:
    lines = [line.split() for line in (proc / "net/tcp").read_text().splitlines()[1:]]
    # man 5 proc: the fourth word is the state, 0A of one that listens; the tenth is the inode.
    listening = {f"socket:[{words[9]}]" for words in lines if words[3] == "0A"}
    return any(os.readlink(link) in listening for link in (proc / "fd").iterdir())


def slopes(folder: Path) -> dict[int, str]:
    """Return the slope after each step, as the last attempt to make it has reported it."""
    return {metrics["step"]: metrics["slope"] for metrics in reported(folder / "run")}


@pytest.fixture(scope="module")
def expected(
    five_nodes: VirtualCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, str]:
    """Slopes of a run in which each agent has a connection to the executor."""
    folder = tmp_path_factory.mktemp("flat")
    (folder / "go").touch()
    process = start(five_nodes, folder, NUM_NODES)
    printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed
    assert len(slopes(folder)) >= STEPS
    return {step: slope for step, slope in slopes(folder).items() if step <= STEPS}


@contextmanager
def paused_run(cluster: VirtualCluster, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the script with agents that relay; in the block its ranks wait before a step."""
    process = start(cluster, folder, 2)
    try:
        pauses = [folder / f"pauses-{rank}" for rank in range(NUM_NODES)]
        wait_until(lambda: all(f.exists() for f in pauses), process=process, timeout_s=TIMEOUT_S)
        yield process
    finally:
        (folder / "go").touch()


def test_a_run_reports_saves_and_stops_through_agents_that_relay(
    five_nodes: VirtualCluster, tmp_path: Path, expected: dict[int, str]
) -> None:
    with paused_run(five_nodes, tmp_path) as process:
        # The two that have come first have the other three as children.
        assert sorted(agents(tmp_path).values()) == [False] * 3 + [True] * 2
    printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed
    result = Result.from_path(tmp_path / "run")
    assert result.error is None
    assert len(result.attempts) == 1
    found = slopes(tmp_path)
    assert {step: found[step] for step in expected} == expected
    assert agents(tmp_path) == {}


def test_a_run_goes_on_with_the_same_losses_when_an_inner_agent_is_killed(
    five_nodes: VirtualCluster, tmp_path: Path, expected: dict[int, str]
) -> None:
    with paused_run(five_nodes, tmp_path) as process:
        inner = [pid for pid, is_inner in agents(tmp_path).items() if is_inner]
        os.kill(inner[0], signal.SIGKILL)
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed
    result = Result.from_path(tmp_path / "run")
    assert result.error is None
    assert len(result.attempts) == 2
    found = slopes(tmp_path)
    assert {step: found[step] for step in expected} == expected
    assert agents(tmp_path) == {}
