"""Loggers of a run whose job is queued again: one record of each tracker, over both jobs."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.callbacks.mlflow_store import file_store
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.callbacks.records import wandb_history, wandb_parts
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm
TIMEOUT_S = 90.0
STEPS = 26
BEFORE = 14

SCRIPT = f"""
import time
import hpctrain, hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.callbacks import (
    CSVLoggerCallback, JsonLoggerCallback, MLflowLoggerCallback, TBXLoggerCallback,
    WandbLoggerCallback,
)

def train(config):
    found = hpctrain.get_checkpoint()
    begin = found.to_dict()["step"] if found else 0
    context = hpctrain.get_context()
    for step in range(begin + 1, {STEPS} + 1):
        hpctrain.collective.barrier(timeout_s=60)
        # The job is queued again before it is through, however busy the machine is.
        time.sleep(0.05 if found or step <= {BEFORE} else 1.0)
        metrics = {{"step": step, "resumed": begin > 0}}
        save = step % 10 == 0 and context.get_world_rank() == 0
        hpctrain.report(metrics, Checkpoint.from_dict({{"step": step}}) if save else None)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={{"lr": 0.5}},
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=1)),
        run_config=RunConfig(
            name="run", storage_path=".",
            callbacks=[
                CSVLoggerCallback(), JsonLoggerCallback(), TBXLoggerCallback(),
                MLflowLoggerCallback(), WandbLoggerCallback(project="p"),
            ],
        ),
    ).fit()
"""


class Job:
    """A run whose ``fit()`` follows it on a login node."""

    def __init__(self, path: Path, cluster: VirtualCluster) -> None:
        self.run_dir = path / "run"
        # The last one leads to a process that another test has begun with wandb.
        unset = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_SERVICE")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        self.environment = {**kept, **cluster.environ, "HPCTRAIN_LAUNCHER": ""}
        (path / "train.py").write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def slurm(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip()

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, what, timeout_s=TIMEOUT_S)

    def wait_for_step(self, step: int) -> None:
        metrics = self.run_dir / "metrics.jsonl"
        self.wait_for(
            lambda: metrics.exists() and f'"step":{step},' in metrics.read_text(), f"step {step}"
        )

    def executor(self) -> int:
        """Return the process of the executor, the child of its supervisor."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if "hpctrain.execute.supervisor" in words and str(self.run_dir) in words:
                    found.append(int(pid))
        return max(found)

    def finish(self) -> Result:
        said, _ = self.process.communicate(timeout=TIMEOUT_S)
        logs = [path.read_text() for path in sorted(self.run_dir.glob("slurm/*.out"))]
        assert self.process.returncode == 0, "\n".join([said, *logs])
        return Result.from_path(self.run_dir)


@pytest.fixture
def job(virtual_slurm: VirtualCluster, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, virtual_slurm)
    yield job
    job.process.kill()
    job.process.communicate()
    job.slurm("scancel", "--name=run")


@pytest.mark.parametrize("how", ["requeue", pytest.param("kill", marks=pytest.mark.long)])
def test_each_tracker_has_one_record_over_both_jobs_with_each_report_once(
    job: Job, how: str
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    job.wait_for_step(BEFORE)
    job_id = Result.from_path(job.run_dir).status.job_id
    assert job_id is not None
    if how == "requeue":
        job.slurm("scontrol", "requeue", job_id)
    else:
        os.kill(job.executor(), signal.SIGKILL)
    result = job.finish()
    assert result.state == "finished"
    events = read_events(RunPaths(job.run_dir))
    attempts = [event for event in events if event["event"] == "attempt-started"]
    assert len(attempts) == 2
    resumed_at = attempts[1]["first_report"]
    every = list(range(1, STEPS + 1))

    with (job.run_dir / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == every
    lines = [json.loads(line) for line in (job.run_dir / "result.json").read_text().splitlines()]
    assert [line["training_iteration"] for line in lines] == every
    # The files have what came last.
    assert [line["resumed"] for line in lines] == [step > resumed_at for step in every]

    shown = accumulator.EventAccumulator(str(job.run_dir))
    shown.Reload()
    assert [(one.step, one.value) for one in shown.Scalars("step")] == [(n, n) for n in every]

    client = mlflow.MlflowClient(file_store(job.run_dir))
    (run,) = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    history = client.get_metric_history(run.info.run_id, "step")
    assert [(one.step, one.value) for one in history] == [(n, n) for n in every]
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.5"})

    parts = wandb_parts(job.run_dir)
    runs = {r.run.run_id for part in parts for r in part if r.HasField("run")}
    assert runs == {json.loads((job.run_dir / "plan.json").read_text())["run_id"]}
    logged = [(row["_step"], row["step"]) for part in parts for row in wandb_history(part)]
    assert logged == [(n, n) for n in every]
