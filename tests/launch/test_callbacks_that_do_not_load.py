"""A callback whose module cannot be imported where the executor is, in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until_final

pytestmark = pytest.mark.mpi
TIMEOUT_S = 120

CALLBACK = """
import os
from hpctrain import UserCallback

if os.getpid() != int(os.environ["SUBMITTER"]):
    raise RuntimeError("no %d here")

class Mine(UserCallback):
    pass
"""

SCRIPT = """
import os, sys
os.environ["SUBMITTER"] = str(os.getpid())
import callback
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.tune import TuneConfig, Tuner, grid_search

def train(config):
    hpctrain.report({"x": config["x"]})

if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"x": 1},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name="one",
            storage_path="runs",
            callbacks=[callback.Mine()],
            launcher=sys.argv[2] if len(sys.argv) > 2 else "local",
        ),
    )
    if sys.argv[1] == "one":
        trainer.submit()
    else:
        results = Tuner(
            trainer,
            param_space={"train_loop_config": {"x": grid_search([1, 2])}},
            tune_config=TuneConfig(metric="x", mode="min"),
            run_config=RunConfig(name="sweep", storage_path="runs", callbacks=[callback.Mine()]),
        ).fit()
        print([str(error) for error in results.errors])
"""


def run(place: Path, *what: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (place / "callback.py").write_text(CALLBACK)
    (place / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "train.py", *what],
        cwd=place,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_a_run_in_the_background_has_failed_with_its_error(tmp_path: Path) -> None:
    done = run(tmp_path, "one")
    check_failed(done, tmp_path)


@pytest.mark.slurm
def test_a_job_has_failed_with_its_error(virtual_slurm: VirtualCluster, tmp_path: Path) -> None:
    done = run(tmp_path, "one", "slurm", **virtual_slurm.environ)
    check_failed(done, tmp_path)


def check_failed(done: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs" / "one"
    wait_until_final(path, timeout_s=TIMEOUT_S)
    result = Result.from_path(path)
    assert result.state == "failed"
    assert "RuntimeError: no %d here" in str(result.error)
    assert f"at {tmp_path}/callback.py:6" in str(result.error)
    ends = [event for event in read_events(RunPaths(path)) if event["event"] == "run-ended"]
    assert [end["state"] for end in ends] == ["failed"]


def test_each_trial_of_a_sweep_fails_once_with_its_error(tmp_path: Path) -> None:
    done = run(tmp_path, "sweep", HPCTRAIN_LAUNCHER="local")
    assert done.stdout.splitlines()[-1].count("RuntimeError: no %d here") == 2, done.stdout
    assert "was killed" not in done.stdout + done.stderr
    for trial in ("trial_00000", "trial_00001"):
        lines = (tmp_path / "runs/sweep" / trial / "ledger.jsonl").read_text().splitlines()
        names = [json.loads(line)["event"] for line in lines]
        assert names.count("run-ended") == 1
