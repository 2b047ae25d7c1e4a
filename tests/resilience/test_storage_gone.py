"""Storage that is removed, moved or copied while a run goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.directory import read_run_id
from hpctrain.rundir.paths import RunPaths
from tests.waiting import wait_until

PATIENCE_S = 60.0

SCRIPT = """
import sys, time
import hpctrain, hpctrain.collective
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError, RunConfig, ScalingConfig,
    SlurmConfig,
)

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    rank = hpctrain.get_context().get_world_rank()
    while step < 10_000 and not (step >= 40 and open(config["steps"]).read() == "few"):
        step += 1
        hpctrain.collective.barrier(timeout_s=60)
        time.sleep(0.05)   # a step of work
        saved = Checkpoint.from_dict({"step": step}) if step % 5 == 0 and rank == 0 else None
        hpctrain.report({"step": step}, saved)

if __name__ == "__main__":
    storage, name, steps = sys.argv[1:]
    try:
        DataParallelTrainer(
            train,
            train_loop_config={"steps": steps},
            scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=1)),
            run_config=RunConfig(
                storage_path=storage, name=name, failure_config=FailureConfig(max_failures=3)
            ),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        raise SystemExit(4)
"""


class Home:
    """Where a script runs, and what is said there."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.path = path
        self.environment = {**os.environ, **environment}
        self.processes: list[subprocess.Popen[str]] = []
        (path / "train.py").write_text(SCRIPT)
        (path / "steps").write_text("many")

    def start(self, storage: Path, name: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "train.py", str(storage), name, str(self.path / "steps")]
        output = subprocess.PIPE
        process = subprocess.Popen(
            argv, cwd=self.path, env=self.environment, stdout=output, stderr=output, text=True
        )
        self.processes.append(process)
        return process

    def hpctrain(self, *args: str) -> str:
        argv = [sys.executable, "-m", "hpctrain.cli", *args]
        answer = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout + answer.stderr

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def wait_for_step(run: Path, step: int) -> None:
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and f'"step":{step}}}' in metrics.read_text(), "a step")


def remove(directory: Path) -> bool:
    # A file that a rank was about to write can keep a directory from being removed.
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def check_that_it_stopped(process: subprocess.Popen[str], why: str) -> None:
    said, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, said + told
    assert f"RunStoppedError: the directory of the run, {why}" in said, said + told


@pytest.mark.mpi
def test_a_run_whose_storage_is_removed_or_moved_stops_and_makes_none_anew(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path, HPCTRAIN_LAUNCHER="local")
    try:
        removed, moved = tmp_path / "removed" / "run", tmp_path / "moved" / "run"
        first = home.start(removed.parent, "run")
        second = home.start(moved.parent, "run")
        wait_for_step(removed, 12)
        wait_until(lambda: remove(removed.parent), "the removal")
        wait_for_step(moved, 12)
        moved.parent.rename(tmp_path / "elsewhere")
        check_that_it_stopped(first, f"{removed}, was removed")
        now = tmp_path / "elsewhere" / "run"
        check_that_it_stopped(second, f"{moved}, was moved to {now}")
        assert not removed.parent.exists()
        assert not moved.parent.exists()
        result = Result.from_path(now)
        assert result.state == "stopped"
        assert "was moved to" in str(result.error)
        # It goes on from there.
        (tmp_path / "steps").write_text("few")
        said, told = home.start(now.parent, "run").communicate(timeout=PATIENCE_S)
        result = Result.from_path(now)
        assert result.state == "finished", said + told
        steps = [metrics["step"] for metrics in result.metrics_history]
        assert steps == list(range(1, len(steps) + 1))
        assert result.attempts[-1].cause == "finished"
    finally:
        home.close()


@pytest.mark.slurm
def test_a_copy_is_a_run_of_its_own_and_the_original_whose_storage_goes_stops(
    virtual_slurm: Any, tmp_path: Path
) -> None:
    home = Home(tmp_path, **virtual_slurm.environ, HPCTRAIN_LAUNCHER="slurm")
    run, copy = tmp_path / "runs" / "run", tmp_path / "copies" / "copy"
    try:
        process = home.start(run.parent, "run")
        wait_for_step(run, 12)
        job_id = Result.from_path(run).status.job_id
        copy.parent.mkdir()
        # Files that vanish while they are copied are the run's own temporary ones.
        subprocess.run(["cp", "-a", str(run), str(copy)], check=False, capture_output=True)

        said = home.hpctrain("cancel", "--now", str(copy))
        assert "there is nothing to cancel" in said
        assert f"Its original is {run}" in said
        shown = json.loads(home.hpctrain("status", "--json", str(copy)))
        assert (shown["state"], shown["live"], shown["job_id"]) == ("stopped", False, None)
        assert f"{copy} is a copy of {run}" in shown["error"]
        assert json.loads(home.hpctrain("status", "--json", str(run)))["job_id"] == job_id

        # On the copy, fit() begins a job of its own, from the copied checkpoints.
        of_copy = home.start(copy.parent, "copy")
        wait_until(lambda: Result.from_path(copy).state == "running", "the copy runs")
        result = Result.from_path(copy)
        assert result.status.job_id not in (None, job_id)
        resumed_from = [e["resumed_from"] for e in events(copy) if e["event"] == "attempt-started"]
        assert Path(resumed_from[-1]).parent == copy / "checkpoints"
        assert read_run_id(RunPaths(copy)) != read_run_id(RunPaths(run))

        # The original runs still, and stops when its storage goes.
        assert process.poll() is None
        run.rename(tmp_path / "trash")
        check_that_it_stopped(process, f"{run}, was moved to {tmp_path}/trash")
        (tmp_path / "steps").write_text("few")
        said, told = of_copy.communicate(timeout=PATIENCE_S)
        assert of_copy.returncode == 0, said + told
        assert f"a copy of {run}, as a run of its own" in told
        assert not run.exists()
        # Its executor looks every two seconds, and may be later than the process that follows it.
        trash = tmp_path / "trash"
        wait_until(lambda: Result.from_path(trash).state == "stopped", "the original stops")
        original = Result.from_path(trash)
        assert original.status.job_id == job_id
        assert [attempt.job_id for attempt in original.attempts] == [job_id]
    finally:
        home.close()
        subprocess.run(["scancel", "--name=run,copy"], env=home.environment, check=False)


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
