"""A run on the virtual cluster that is disturbed, and a look at what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

TIMEOUT_S = 120.0

SCRIPT = """
import argparse, os, signal, time
import hpctrain
import hpctrain.collective
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError, RunConfig, ScalingConfig,
    SlurmConfig, UserCallback,
)

class DiesAtTheEnd(UserCallback):
    def on_finish(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "weight": 1.0}
    rank = hpctrain.get_context().get_world_rank()
    if config["attempts"]:
        in_last = hpctrain.get_context().world.attempt >= config["attempts"]
        config["steps"] = state["step"] + 10 if in_last else float("inf")
    while state["step"] < config["steps"]:
        state = {"step": state["step"] + 1, "weight": state["weight"] * 1.0001 + state["step"]}
        hpctrain.collective.barrier(timeout_s=60)
        time.sleep(config["pause"])   # a step of work
        stop = config["asks"] and hpctrain.should_stop()
        save = stop or state["step"] in (config["steps"], state["step"] // 10 * 10)
        if stop and rank == 0:
            print("told to stop:", hpctrain.get_preemption_info(), flush=True)
        hpctrain.report(state, Checkpoint.from_dict(state) if save and rank == 0 else None)
        if stop:
            return
    return state["step"]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--attempts", type=int, help="end ten steps after this one has begun")
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--asks", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--time")
    parser.add_argument("--notice", type=int)
    parser.add_argument("--total-time", type=int, help="seconds")
    parser.add_argument("--node-timeout", type=float, default=30.0)
    parser.add_argument("--preemptions", type=int, default=-1)
    parser.add_argument("--partition")
    parser.add_argument("--dies-at-the-end", action="store_true")
    parser.add_argument("--sbatch", action="append", default=[])
    args = parser.parse_args()
    from datetime import timedelta
    total = None if args.total_time is None else timedelta(seconds=args.total_time)
    try:
        result = DataParallelTrainer(
            train,
            train_loop_config={
                "steps": args.steps, "attempts": args.attempts, "pause": args.pause,
                "asks": args.asks,
            },
            scaling_config=ScalingConfig(
                num_workers=args.workers,
                slurm=SlurmConfig(
                    nodes=args.nodes, time=args.time, stop_notice_s=args.notice,
                    partition=args.partition, sbatch_args=args.sbatch,
                ),
            ),
            run_config=RunConfig(
                name="run", storage_path=".", total_time=total,
                callbacks=[DiesAtTheEnd()] * args.dies_at_the_end,
                failure_config=FailureConfig(
                    max_preemption_failures=args.preemptions, node_timeout_s=args.node_timeout
                ),
            ),
        ).fit()
        print("finished", result.metrics)
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        raise SystemExit(4)
"""


def undisturbed(steps: int) -> list[dict[str, Any]]:
    """Return what the script reports if nobody disturbs it."""
    reports, step, weight = [], 0, 1.0
    while step < steps:
        weight = weight * 1.0001 + step
        step += 1
        reports.append({"step": step, "weight": weight})
    return reports


@dataclass
class Disturbed:
    """A run in a job, and what can be done to it."""

    path: Path
    cluster: VirtualCluster
    process: subprocess.Popen[str] | None = None

    @property
    def run_dir(self) -> Path:
        return self.path / "run"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.cluster.environ, "HPCTRAIN_LAUNCHER": ""}

    def write_script(self) -> None:
        """Write the script of the run."""
        (self.path / "train.py").write_text(SCRIPT)

    def start(self, *args: str) -> None:
        """Call fit() on a login node."""
        self.write_script()
        self.process = subprocess.Popen(
            [sys.executable, "train.py", *args],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, command: str, *directives: str) -> str:
        """Submit a job that runs a command on the script; return its number."""
        (self.path / "train.py").write_text(SCRIPT)
        argv = ["sbatch", "--parsable", "--requeue", "--job-name=run", "--open-mode=append"]
        wrapped = f"--wrap={command.format(python=sys.executable)}"
        job_id = self.slurm(*argv, f"--chdir={self.path}", "--output=job.out", *directives, wrapped)
        assert job_id.isdigit(), job_id
        return job_id

    def slurm(self, *argv: str) -> str:
        answer = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=30
        )
        return answer.stdout.strip()

    def job_id(self) -> str:
        job_id = Result.from_path(self.run_dir).status.job_id
        assert job_id is not None
        return job_id

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_until(condition, what, timeout_s=TIMEOUT_S, process=self.process)

    def wait_for_step(self, step: int) -> None:
        metrics = self.run_dir / "metrics.jsonl"
        self.wait_for(
            lambda: metrics.exists() and f'"step":{step},' in metrics.read_text(), f"step {step}"
        )

    def history(self) -> str:
        """Return what ``hpctrain history`` says, in one line."""
        shown = self.slurm(sys.executable, "-m", "hpctrain.cli", "history", str(self.run_dir))
        return " ".join(shown.split())

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in read_events(RunPaths(self.run_dir)) if e["event"] == name]

    def finish(self, *, steps: int | None = 60, status: int = 0) -> Result:
        """Wait until fit() has returned; check that every step is there once, and right.

        ``steps`` is None where it was left open how many there are.
        """
        assert self.process is not None
        said, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == status, said + self.logs()
        return self.result(steps) if status == 0 else Result.from_path(self.run_dir)

    def finish_job(self, job_id: str) -> Result:
        """Wait until a submitted job is over; check what `finish` checks."""
        self.wait_for(
            lambda: (
                self.slurm("squeue", "-h", "-t", "all", "-o", "%T", "-j", job_id)
                in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
            ),
            f"the end of job {job_id}",
        )
        assert "finished" in (self.path / "job.out").read_text(), self.logs()
        return self.result(steps=60)

    def result(self, steps: int | None) -> Result:
        result = Result.from_path(self.run_dir)
        assert result.state == "finished"
        expected = undisturbed(steps or len(result.metrics_history))
        assert result.metrics_history == expected
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict() == expected[-1]
        return result

    def logs(self) -> str:
        """Return what the jobs and the ledger say."""
        files = [*self.path.glob("job.out"), *sorted(self.run_dir.glob("slurm/*.out"))]
        files.append(self.run_dir / "ledger.jsonl")
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files if file.exists())


@pytest.fixture
def disturbed(virtual_slurm: VirtualCluster, tmp_path: Path) -> Iterator[Disturbed]:
    run = Disturbed(tmp_path, virtual_slurm)
    yield run
    if run.process is not None:
        run.process.kill()
        run.process.communicate()
    run.slurm("scancel", "--name=run,rival")
