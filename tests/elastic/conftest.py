"""A cluster to break, and a run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.pytest_plugin import require_components
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode
from tests.waiting import wait_until

PATIENCE_S = 120.0

# Each epoch goes through 48 rows; what every rank saw of them is written down by a callback, which
# runs in the executor. The ranks do each step together, as those of a real training do.
SCRIPT = """
import json, os, sys, time
import hpctrain
import hpctrain.collective
from hpctrain import (
    BackendConfig, Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError, RunConfig,
    ScalingConfig, SlurmConfig, UserCallback,
)

class Diary(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        line = {"epoch": metrics[0]["epoch"], "attempt": run_context.attempt,
                "nodes": [m["node"] for m in metrics], "rows": [m["rows"] for m in metrics],
                "forked": [m["forked"] for m in metrics],
                "born": [m["born"] for m in metrics], "now": [m["now"] for m in metrics]}
        with open(run_context.path / "diary.jsonl", "a") as diary:
            diary.write(json.dumps(line) + "\\n")

class Preloaded(BackendConfig):
    preload = tuple(json.loads(sys.argv[1])["preload"])

def seconds_of_boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

def birth():
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")

def train(config):
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        is_forked = "hpctrain.worker.fork_server" in file.read()
    context = hpctrain.get_context()
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(first, config["epochs"]):
        rows = list(hpctrain.get_dataset_shard("train"))
        hpctrain.collective.barrier(timeout_s=600)
        time.sleep(config["epoch_s"])   # the work
        rank = context.get_world_rank()
        saved = Checkpoint.from_dict({"epoch": epoch}) if rank == 0 else None
        told = {
            "epoch": epoch, "rows": rows, "node": context.world.hostname, "forked": is_forked,
            "born": birth(), "now": seconds_of_boot(),
        }
        hpctrain.report(told, saved)
        if config["asks"] and hpctrain.should_stop():
            return
    return context.get_world_size()

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    workers = request["workers"]
    try:
        DataParallelTrainer(
            train,
            train_loop_config=request["config"],
            backend_config=Preloaded(),
            datasets={"train": list(range(48))},
            scaling_config=ScalingConfig(
                num_workers=tuple(workers) if isinstance(workers, list) else workers,
                elastic_resize_monitor_interval_s=1.0,
                slurm=SlurmConfig(**request["slurm"]),
            ),
            run_config=RunConfig(
                storage_path=request["storage"], name="run", callbacks=[Diary()],
                failure_config=FailureConfig(node_timeout_s=6.0),
            ),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., VirtualCluster]]:
    """Start clusters whose nodes can lose their power."""
    clusters = []

    def make(**fields: Any) -> VirtualCluster:
        spec = ClusterSpec(gpus_per_node=0, **fields)
        require_components(spec)
        if best_mode() == "flat":
            pytest.skip("namespaces need root")
        state_dir = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
        clusters.append(VirtualCluster.start(spec, state_dir=state_dir))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.stop()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on a cluster, as its user on the login node sees it."""

    path: Path
    process: subprocess.Popen[str]

    @property
    def diary(self) -> list[dict[str, Any]]:
        """What the callback has written down: one entry a report."""
        path = self.path / "diary.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind in the ledger."""
        return [event for event in read_events(RunPaths(self.path)) if event["event"] == kind]

    def history(self) -> str:
        """Return what ``hpctrain history`` says, in one line."""
        argv = [sys.executable, "-m", "hpctrain.cli", "history", str(self.path)]
        return " ".join(subprocess.run(argv, capture_output=True, text=True).stdout.split())

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds."""
        wait_until(condition, what, timeout_s=PATIENCE_S, process=self.process)

    def wait_for_epoch(self, epoch: int, *, attempt: int = 1) -> None:
        """Wait until an epoch was reported in an attempt."""
        self.wait(
            f"epoch {epoch} of attempt {attempt}",
            lambda: any(e["epoch"] >= epoch and e["attempt"] >= attempt for e in self.diary),
        )

    def check_that_every_row_was_seen_once_an_epoch(self, epochs: int) -> None:
        """Check what ranks saw, for each epoch in the attempt that ended it."""
        last = {entry["epoch"]: entry for entry in self.diary}
        assert sorted(last) == list(range(epochs))
        for entry in last.values():
            assert sorted(row for rows in entry["rows"] for row in rows) == list(range(48))

    def finish(self) -> Result:
        """Wait for the end; return the result."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, said
        return Result.from_path(self.path)


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs, and end them after the test."""
    runs: list[Run] = []

    def start(
        cluster: VirtualCluster,
        workers: int | tuple[int, int],
        *,
        epochs: int = 6,
        epoch_s: float = 0.5,
        asks: bool = False,
        preload: Sequence[str] = (),
        code: str = SCRIPT,
        **slurm: Any,
    ) -> Run:
        script = tmp_path / "train.py"
        script.write_text(code)
        request = {
            "workers": workers,
            "storage": str(tmp_path),
            "config": {"epochs": epochs, "epoch_s": epoch_s, "asks": asks},
            "slurm": slurm,
            "preload": [*preload],
        }
        process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(request)],
            env={**os.environ, **cluster.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        runs.append(Run(path=tmp_path / "run", process=process))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.communicate(timeout=PATIENCE_S)
