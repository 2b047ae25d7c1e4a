"""What ``fit()`` does under a name that exists; what a killed login-node process does not do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.errors import ConfigError
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

SCRIPT = """
import sys, time, pathlib
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    gate = pathlib.Path(config["gate"])
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    for step in range(first, 4):
        deadline = time.monotonic() + 60
        while step == 2 and not gate.exists():   # released by the test
            assert time.monotonic() < deadline
            time.sleep(0.02)
        rank = hpctrain.get_context().get_world_rank()
        saved = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"step": step, "factor": config["factor"]}, saved)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"gate": sys.argv[2], "factor": float(sys.argv[3])},
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
    print("fit returned")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def command(script: Path, factor: float = 1.0) -> list[str]:
    storage, gate = script.parent / "runs", script.parent / "gate"
    return [sys.executable, str(script), str(storage), str(gate), str(factor)]


def has_saved_twice(run: Path) -> bool:
    # Not a line of the metrics: it is written before the checkpoint is committed.
    return (run / "checkpoints" / "000002").exists()


def finish(argv: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.slurm
def test_a_killed_login_process_does_not_harm_the_run_and_fit_follows_it_again(
    virtual_slurm: VirtualCluster, script: Path
) -> None:
    environ = {**os.environ, **virtual_slurm.environ}
    run = script.parent / "runs" / "run"
    login = subprocess.Popen(command(script), env=environ, stdout=subprocess.DEVNULL)
    wait_until(lambda: has_saved_twice(run), "the run has saved twice")
    login.send_signal(signal.SIGKILL)
    login.wait(10)

    refused = finish(command(script, factor=2.0), environ)
    assert refused.returncode == ConfigError.exit_code
    assert "is running (job" in refused.stderr
    assert "hpctrain cancel" in refused.stderr

    follower = subprocess.Popen(command(script), env=environ, stdout=subprocess.PIPE, text=True)
    (script.parent / "gate").touch()
    said, _ = follower.communicate(timeout=120)
    assert follower.returncode == 0
    assert "fit returned" in said
    assert [r["step"] for r in Result.from_path(run).metrics_history] == [0, 1, 2, 3]
    assert len(Result.from_path(run).job_ids) == 1


def begin_and_kill(script: Path, environ: dict[str, str]) -> Path:
    run = script.parent / "runs" / "run"
    first = subprocess.Popen(command(script), env=environ, stdout=subprocess.DEVNULL)
    wait_until(lambda: has_saved_twice(run), "the run has saved twice")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    (script.parent / "gate").touch()
    return run


def test_a_killed_local_run_resumes_and_a_finished_one_is_returned(script: Path) -> None:
    environ = {**os.environ, "HPCTRAIN_LAUNCHER": "local"}
    run = begin_and_kill(script, environ)

    second = finish(command(script), environ)
    assert second.returncode == 0, second.stderr
    assert "resuming run run" in second.stderr
    result = Result.from_path(run)
    assert [r["step"] for r in result.metrics_history] == [0, 1, 2, 3]
    assert [attempt.attempt for attempt in result.attempts] == [1, 2]

    third = finish(command(script), environ)
    assert third.returncode == 0
    assert "is finished" in third.stdout
    assert len(Result.from_path(run).attempts) == 2

    other = finish(command(script, factor=2.0), environ)
    assert other.returncode == ConfigError.exit_code
    assert "is finished, and this fit() asks for something else" in other.stderr


def test_a_dead_run_resumes_with_a_new_spec_and_says_what_changed(script: Path) -> None:
    environ = {**os.environ, "HPCTRAIN_LAUNCHER": "local"}
    run = begin_and_kill(script, environ)

    second = finish(command(script, factor=2.0), environ)
    assert second.returncode == 0, second.stderr
    assert "changed: train_loop_config['factor']: 1.0, now 2.0" in second.stderr
    history = Result.from_path(run).metrics_history
    assert [r["factor"] for r in history] == [1.0, 1.0, 2.0, 2.0]
