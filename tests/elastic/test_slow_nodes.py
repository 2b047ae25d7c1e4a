"""A node becomes slow while a run is on it: the kernel gives its ranks less of a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

pytest.importorskip("torch")
pytestmark = pytest.mark.slurm

MakeCluster = Callable[..., VirtualCluster]

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PATIENCE_S = 150.0
# A step of each rank: 100 ms of something that is no work for a CPU, and a little work. Where steps
# are not measured, it is the work alone.
SCRIPT = """
import json, os, sys, time
import hpctrain
from hpctrain import (
    Checkpoint, FailureConfig, RunConfig, ScalingConfig, SlurmConfig, UserCallback, timeouts,
)
from hpctrain.torch import TorchTrainer, prepare_model

class Impatient(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        timeouts.SLOW_NODE_S = 3.0

def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def train(config):
    import torch

    context = hpctrain.get_context()
    rank, storage = context.get_world_rank(), config["storage"]
    torch.manual_seed(0)
    inner = torch.nn.Linear(8, 1)
    checkpoint = hpctrain.get_checkpoint()
    first = 1
    if checkpoint:
        state = checkpoint.to_dict()
        inner.load_state_dict(state["model"])
        first = state["step"] + 1
    model = prepare_model(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, config["steps"] + 1):
        torch.manual_seed(1000 * step + rank)
        x = torch.randn(4, 8)
        time.sleep(config["pause_s"])
        work(0.01)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(storage + "/step", "w") as file:
                file.write(str(step))
        if step % 10 == 0:
            saved = Checkpoint.from_dict(
                {"model": inner.state_dict(), "step": step}
            ) if rank == 0 else None
            told = {"step": step, "loss": loss.item(), "node": context.world.hostname}
            hpctrain.report(told, saved)
            if hpctrain.should_stop():
                return

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    workers = request["workers"]
    TorchTrainer(
        train,
        train_loop_config=request["config"],
        scaling_config=ScalingConfig(
            num_workers=tuple(workers) if isinstance(workers, list) else workers,
            slurm=SlurmConfig(**request["slurm"])
        ),
        run_config=RunConfig(
            storage_path=request["config"]["storage"], name="run", callbacks=[Impatient()],
            failure_config=FailureConfig(slow_node_factor=request["factor"]),
        ),
    ).fit()
"""


class Run:
    """A run on a cluster, as its user on the login node sees it."""

    def __init__(
        self,
        cluster: VirtualCluster,
        storage: Path,
        *,
        steps: int,
        pause_s: float = 0.1,
        workers: int | tuple[int, int] = 3,
        factor: float | None = None,
        **slurm: Any,
    ) -> None:
        storage.mkdir()
        script = storage / "train.py"
        script.write_text(SCRIPT)
        request = {
            "config": {"storage": str(storage), "steps": steps, "pause_s": pause_s},
            "workers": workers,
            "factor": factor,
            "slurm": slurm,
        }
        self.storage = storage
        self.paths = RunPaths(storage / "run")
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(request)],
            env={**os.environ, **cluster.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def step(self) -> int:
        """The step that rank 0 has made last."""
        with suppress(OSError, ValueError):
            return int((self.storage / "step").read_text())
        return 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind in the ledger."""
        if not self.paths.ledger.exists():
            return []
        return [event for event in read_events(self.paths) if event["event"] == kind]

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds."""
        wait_until(condition, what, timeout_s=PATIENCE_S, process=self.process)

    def finish(self) -> Result:
        """Wait for the end; return the result."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, said
        return Result.from_path(self.paths.root)

    def command(self, *argv: str) -> str:
        """Return what a command of hpctrain says of the run, in one line."""
        argv = (sys.executable, "-m", "hpctrain.cli", *argv, str(self.paths.root))
        return " ".join(subprocess.run(argv, capture_output=True, text=True).stdout.split())

    def ranks_on(self, node: str) -> list[int]:
        """Return the processes of the ranks on a node, as this host numbers them."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                argv = (directory / "cmdline").read_bytes().split(b"\0")
                if b"hpctrain.worker.main" in argv and os.fsencode(self.paths.root) in argv:
                    variables = (directory / "environ").read_bytes().split(b"\0")
                    if f"SLURMD_NODENAME={node}".encode() in variables:
                        found.append(int(directory.name))
        return found


@contextmanager
def throttled(pids: list[int]) -> Iterator[None]:
    """Give processes a twentieth of a CPU, in turns of 20 ms.

    Their steps become so much longer that what other processes of the machine cost does not count.
    """
    group = CPU_GROUPS / f"hpctrain-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text("1000")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"the CPU of processes cannot be limited here: {error}")
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            # Its last process may have ended meanwhile.
            with suppress(OSError):
                (CPU_GROUPS / "cgroup.procs").write_text(pid)
        wait_until(lambda: _removed(group), "the end of the group", timeout_s=30)


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs, and end them after the test."""
    runs: list[Run] = []

    def begin(cluster: VirtualCluster, name: str, **options: Any) -> Run:
        runs.append(Run(cluster, tmp_path / name, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()


def losses(result: Result) -> list[tuple[int, float]]:
    """Return the loss of rank 0 by step."""
    return [(int(row["step"]), float(row["loss"])) for row in result.metrics_history]


def test_a_throttled_node_is_named_within_twenty_steps_and_replaced_by_the_spare(
    make_cluster: MakeCluster, start: Callable[..., Run]
) -> None:
    cluster = make_cluster(num_nodes=4)
    # Where it is mounted does not matter, and virtual nodes have it nowhere.
    mount = ["mount", "-t", "cgroup", "-o", "cpu", "cpu", "/mnt"]
    assert cluster.run_on("node2", mount).returncode == 0
    run = start(cluster, "slow", steps=120, factor=1.25, nodes=3, spare_nodes=1)
    run.wait("step 30", lambda: run.step >= 30)
    assert run.events("node-slow") == []
    onset = run.step
    pids = run.ranks_on("node2")
    assert len(pids) == 1
    with throttled(pids):
        run.wait("a slow node", lambda: run.events("node-slow"))
        shown = run.command("status")
        run.wait("another attempt", lambda: len(run.events("attempt-started")) == 2)
    result = run.finish()
    (named,) = run.events("node-slow")
    assert (named["node"], named["ranks"]) == ("node2", [1])
    assert named["factor"] > 1.4
    assert onset - 1 <= named["since_step"] <= onset + 3
    assert named["step"] <= onset + 21
    assert "its cgroup is throttled" in named["reason"]
    assert "slow rank 1 on node2 makes every step" in shown
    # Which no failure was.
    (restart,) = run.events("restart")
    assert restart["what"].startswith("rank 1 on node2 makes every step")
    assert "budget" not in restart
    (left_out,) = run.events("node-left-out")
    assert left_out["node"] == "node2"
    assert result.status.nodes == ("node1", "node3", "node4")
    ended, began = run.events("attempt-ended")[0], run.events("attempt-started")[1]
    assert began["first_report"] == ended["reports"]
    assert "left out: rank 1 on node2" in run.command("history")
    undisturbed = start(cluster, "undisturbed", steps=120, pause_s=0.0, nodes=3)
    assert losses(result) == losses(undisturbed.finish())


def test_an_elastic_run_goes_on_without_a_slow_node_and_keeps_its_fewest(
    make_cluster: MakeCluster, start: Callable[..., Run]
) -> None:
    cluster = make_cluster(num_nodes=3)
    run = start(cluster, "slow", steps=150, workers=(2, 3), factor=1.25, tasks_per_node=1)
    run.wait("step 20", lambda: run.step >= 20)
    with throttled(run.ranks_on("node2")):
        run.wait("another attempt", lambda: len(run.events("attempt-started")) == 2)
    run.wait("more steps", lambda: run.step >= run.events("attempt-ended")[0]["reports"] * 10 + 20)
    with throttled(run.ranks_on("node3")):
        # Within ten minutes of the first, the second one is only named.
        run.wait("another slow node", lambda: len(run.events("node-slow")) == 2)
    result = run.finish()
    assert [event["node"] for event in run.events("node-slow")] == ["node2", "node3"]
    assert [event["node"] for event in run.events("node-left-out")] == ["node2"]
    assert result.status.nodes == ("node1", "node3")
    assert len(run.events("attempt-started")) == 2
    assert [row["step"] for row in result.metrics_history][-1] == 150


def test_a_run_of_fixed_size_keeps_a_slow_node_and_says_why(
    make_cluster: MakeCluster, start: Callable[..., Run]
) -> None:
    cluster = make_cluster(num_nodes=3)
    run = start(cluster, "slow", steps=120, factor=1.25, nodes=3)
    run.wait("step 20", lambda: run.step >= 20)
    with throttled(run.ranks_on("node3")):
        run.wait("the reason", lambda: run.events("node-kept"))
    run.wait("the end of it", lambda: run.events("node-slow-over"))
    run.finish()
    (kept,) = run.events("node-kept")
    assert kept["node"] == "node3"
    assert "SlurmConfig(spare_nodes=1)" in kept["reason"]
    assert len(run.events("attempt-started")) == 1
