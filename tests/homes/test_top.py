"""What ``hpctrain top`` shows of a run on the virtual cluster: in the queue, at work, cancelled."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.live import read_live
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.terminal import press
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

TIMEOUT_S = 120
HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
SCRIPT = """
import time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    for step in range(10**6):
        hpctrain.report({"loss": 1 / (step + 1)})
        time.sleep(0.2)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(
            num_workers=4,
            slurm=SlurmConfig(nodes=2, tasks_per_node=2, time="10", sbatch_args=["--hold"]),
        ),
        run_config=RunConfig(
            name="two-nodes", storage_path="runs", stop={"training_iteration": 10**6}
        ),
    ).fit()
"""


class Login:
    """A directory on a login node of the cluster."""

    def __init__(self, path: Path, cluster: VirtualCluster) -> None:
        (path / "train.py").write_text(SCRIPT)
        self.path = path
        self.paths = RunPaths(path / "runs" / "two-nodes")
        self.environ = {**os.environ, **cluster.environ, "HPCTRAIN_LAUNCHER": "slurm"}

    def __call__(self, *argv: str) -> str:
        done = subprocess.run(
            argv,
            cwd=self.path,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def top(self) -> str:
        return self(*HPCTRAIN, "top", "two-nodes", "--storage", "runs")

    def status(self) -> dict[str, Any]:
        said = self(*HPCTRAIN, "status", "two-nodes", "--storage", "runs", "--json")
        loaded: dict[str, Any] = json.loads(said)
        return loaded

    def has_figures(self) -> bool:
        live = read_live(self.paths)
        return (
            live is not None
            and set(live.phases) == {"training"}
            and len(live.uses) == 2
            and all(use.cpu is not None for use in live.uses)
        )


def test_a_run_is_shown_in_the_queue_at_work_and_after_it_was_cancelled(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    login = Login(tmp_path, virtual_slurm)
    login(*HPCTRAIN, "submit", "train.py")
    job_id = login.status()["job_id"]
    try:
        shown = login.top()
        assert "two-nodes: submitted" in shown
        assert "  queue       waits (JobHeldUser): it is held." in shown

        login("scontrol", "release", job_id)
        wait_until(login.has_figures, "the figures of two nodes", timeout_s=TIMEOUT_S)
        shown = login.top()
        assert "two-nodes: running" in shown
        assert "  phases      4 training" in shown
        assert "  speed       " in shown
        assert " of 1000000, " in shown
        status = login.status()
        assert [use["name"] for use in status["node_use"]] == status["nodes"]
        assert all(use["memory_mib"] > 0 for use in status["node_use"])
        assert {rank["node"] for rank in status["slowest_ranks"]} == set(status["nodes"])

        asked = ["--ranks", "0,3", "--seconds", "1", "--output", "trace.json.gz"]
        login(*HPCTRAIN, "profile", "two-nodes", "--storage", "runs", *asked)
        with gzip.open(tmp_path / "trace.json.gz") as file:
            traced = json.load(file)["traceEvents"]
        named = {e["args"]["name"] for e in traced if e.get("name") == "process_name"}
        assert sorted(name.split(" on ")[0] for name in named) == ["rank 0", "rank 3"]
        page, code = press(
            b"q",
            [*HPCTRAIN, "top", "two-nodes", "--storage", "runs"],
            shown_before=b"4 training",
            cwd=tmp_path,
            environ={**login.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
            timeout_s=TIMEOUT_S,
        )
        assert code == 0
        assert "two-nodes: running" in page
        assert "4 training" in page
    finally:
        login("scancel", job_id)
    wait_until(lambda: "two-nodes: stopped" in login.top(), login.top, timeout_s=60)
    assert "got SIGTERM" in login.top()
