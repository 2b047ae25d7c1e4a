"""A job is submitted again from its record."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.plan import spec
from hpctrain.plan.launch_plan import FirstStart
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python
from tests.runs import reported
from tests.waiting import wait_until_final

pytestmark = pytest.mark.slurm

SCRIPT = """
import os
import sys

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def train(config):
    import model

    assert hpctrain.get_checkpoint() is None
    for step in range(3):
        hpctrain.report({"loss": config["lr"] * model.FACTOR / (step + 1)})
    hpctrain.report({"loss": 0.0, "variable": int(os.environ.get("FROM_SETUP", 0))})


if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"lr": 0.5},
        scaling_config=ScalingConfig(
            num_workers=2,
            slurm=SlurmConfig(
                time="5",
                setup=["export FROM_SETUP=17"],
                sbatch_args=["--comment=first", *sys.argv[1:]],
            ),
        ),
        run_config=RunConfig(name="run", storage_path="runs"),
    )
    trainer.fit() if "SLURM_JOB_ID" in os.environ else trainer.submit()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("FACTOR = 3\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def command(
    place: Path, *words: str, environ: dict[str, str], code: int = 0
) -> subprocess.CompletedProcess[str]:
    return run_python(*words, cwd=place, environ=environ, code=code)


def first_start(root: Path) -> FirstStart:
    first = spec.unpack(RunSpec.from_bytes(RunPaths(root).spec.read_bytes()).first_start)
    assert isinstance(first, FirstStart)
    return first


def losses(root: Path) -> list[float]:
    return [metrics["loss"] for metrics in reported(root)]


def test_a_job_is_submitted_again_after_its_module_was_edited(
    place: Path, virtual_slurm: VirtualCluster
) -> None:
    environ = dict(virtual_slurm.environ)
    root, new = place / "runs" / "run", place / "runs" / "run-replay-1"
    command(place, "train.py", "--begin=now", environ=environ)
    assert wait_until_final(root, timeout_s=120).error is None
    (place / "model.py").write_text("FACTOR = 9\n")
    replay = ("-m", "hpctrain.cli", "replay", str(root))
    would = command(place, *replay, "--dry-run", environ=environ)
    assert "#SBATCH --job-name=run-replay-1" in would.stdout
    assert not new.exists()
    done = command(place, *replay, "--time", "7", environ=environ)
    assert "sbatch --time: 5 -> 7" in done.stderr
    assert "sbatch --begin: now -> -" in done.stderr
    result = wait_until_final(new, timeout_s=120)
    assert result.error is None
    assert Result.from_path(new).status.job_id == done.stdout.strip()
    assert losses(new) == losses(root) == [1.5, 0.75, 0.5, 0.0]
    # Lines of the setup are in no file that others can read.
    assert Result.from_path(new).metrics["variable"] == 17
    plans = [json.loads((run / "plan.json").read_bytes()) for run in (root, new)]
    directives = [plan["launch_plan"]["directives"] for plan in plans]
    assert directives[1] == {**directives[0], "job-name": "run-replay-1", "time": "7"}
    assert plans[1]["replay_of"]["run_id"] == plans[0]["run_id"]
    # What starts its ranks before anything else is read.
    assert first_start(new).plan.directives == directives[1]


def test_a_partition_that_is_gone_is_said_and_another_one_can_be_given(
    place: Path, virtual_slurm: VirtualCluster
) -> None:
    environ = dict(virtual_slurm.environ)
    command(place, "train.py", "--hold", environ=environ)
    root = place / "runs" / "run"
    replay = ("-m", "hpctrain.cli", "replay", str(root), "--partition", "no-such-one")
    done = command(place, *replay, environ=environ, code=3)
    assert "warning    " in done.stderr
    assert "no-such-one" in done.stderr
    assert "--partition PARTITION" in done.stderr
    command(place, "-m", "hpctrain.cli", "cancel", str(root), environ=environ)


def test_a_run_of_an_allocation_is_replayed_in_another_or_as_a_job(
    place: Path, virtual_slurm: VirtualCluster
) -> None:
    environ = {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    root = place / "runs" / "run"

    def batch(*words: str) -> None:
        script = shlex.join([sys.executable, *words])
        argv = ["sbatch", "--wait", "--ntasks=2", "--time=5", f"--wrap={script}"]
        done = subprocess.run(
            argv, cwd=place, env={**os.environ, **environ}, capture_output=True, timeout=120
        )
        assert done.returncode == 0, [path.read_text() for path in place.glob("slurm-*.out")]

    batch("train.py")
    assert Result.from_path(root).status.launcher == "allocation"
    (place / "model.py").write_text("FACTOR = 9\n")
    replay = ("-m", "hpctrain.cli", "replay", str(root))
    said = command(place, *replay, environ=environ, code=2).stderr
    assert "there is none here" in said
    assert not root.with_name("run-replay-1").exists()
    batch(*replay)
    command(place, *replay, "--launcher", "slurm", environ=environ)
    for number, launcher in ((1, "allocation"), (2, "slurm")):
        new = root.with_name(f"run-replay-{number}")
        result = wait_until_final(new, timeout_s=120)
        assert result.error is None
        assert result.status.launcher == launcher
        assert losses(new) == losses(root) == [1.5, 0.75, 0.5, 0.0]
    # Only a job has lines of its own before.
    assert Result.from_path(root.with_name("run-replay-2")).metrics["variable"] == 17
