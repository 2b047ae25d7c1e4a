"""A script that is run again after an edit: what a user's terminal says, and what ran."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

SCRIPT = """
import sys
import time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
import model

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(first, config["steps"] + 1):
        hpctrain.report(
            {"loss": model.loss(), "val": {"step": step}}, Checkpoint.from_dict({"step": step})
        )

trainer = DataParallelTrainer(
    train,
    train_loop_config={"steps": 2, "rate": 0.1},
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path="my runs", name="run", stop={"val/step": 9}),
)
if __name__ == "__main__":
    print("loss", trainer.fit().metrics["loss"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "100 % mine"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "model.py").write_text("from helper import LOSS\ndef loss():\n    return LOSS\n")
    (folder / "helper.py").write_text("LOSS = 1.5\n")
    return folder


def python(folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(argv or ["train.py"])],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def told(process: subprocess.CompletedProcess[str]) -> str:
    """Return the last error of a script that failed."""
    assert process.returncode == 2, process.stdout
    return process.stderr[process.stderr.rindex("ConfigError") :]


def aside(folder: Path) -> list[Path]:
    return sorted((folder / "my runs").glob("run.*"))


def test_an_edited_module_is_not_taken_for_the_run_that_is_finished(folder: Path) -> None:
    assert "loss 1.5" in python(folder).stdout
    assert "loss 1.5" in python(folder).stdout
    edit(folder / "helper.py", "1.5", "2.5")
    message = told(python(folder))
    assert "is finished, and this fit() asks for something else:\n  helper.py: edited\n" in message
    assert "another RunConfig(name=...)" in message
    assert "--existing restart" in message

    again = python(folder, "-m", "hpctrain.cli", "run", "--existing", "restart", "train.py")
    assert "loss 2.5" in again.stdout, again.stderr
    (old,) = aside(folder)
    assert f"the earlier one (finished) was moved to {old}" in again.stderr
    assert Result.from_path(old).metrics["loss"] == 1.5
    # The result of what is there now needs no flag.
    assert "loss 2.5" in python(folder).stdout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"rate": 0.1', '"rate": 0.2', "train_loop_config['rate']: 0.1, now 0.2"),
        ('"val/step": 9', '"val/step": 7', "stop['val/step']: 9, now 7"),
        (
            'name="run"',
            'name="run", checkpoint_config=hpctrain.CheckpointConfig(num_to_keep=1)',
            "checkpoint_config['num_to_keep']: not there, now 1",
        ),
    ],
)
def test_what_decides_a_result_is_named_with_its_values(
    folder: Path, before: str, after: str, said: str
) -> None:
    python(folder)
    edit(folder / "train.py", before, after)
    message = told(python(folder))
    assert f"asks for something else:\n  {said}\nTo keep it" in message


def test_another_checkpoint_to_begin_with_is_another_run(folder: Path) -> None:
    python(folder)
    edit(
        folder / "train.py",
        "    scaling_config",
        "    resume_from_checkpoint=Checkpoint(sys.argv[1]),\n    scaling_config",
    )
    edit(folder / "train.py", 'name="run"', "name=sys.argv[2]")
    checkpoints = folder / "my runs" / "run" / "checkpoints"
    first, second = (str(checkpoints / name) for name in ("000001", "000002"))
    assert python(folder, "train.py", first, "other").returncode == 0
    assert python(folder, "train.py", first, "other").returncode == 0
    assert "resume_from_checkpoint: " in told(python(folder, "train.py", second, "other"))


def test_what_does_not_decide_a_result_changes_nothing(folder: Path) -> None:
    python(folder)
    edit(
        folder / "train.py",
        'name="run"',
        'name="run", verbose=0, failure_config=hpctrain.FailureConfig(max_failures=3)',
    )
    (folder / "unrelated.py").write_text("")
    assert "loss 1.5" in python(folder).stdout


def test_a_finished_run_goes_on_from_its_last_checkpoint(folder: Path) -> None:
    python(folder)
    edit(folder / "train.py", '"steps": 2', '"steps": 3')
    process = python(folder, HPCTRAIN_EXISTING="resume")
    assert "changed: train_loop_config['steps']: 2, now 3" in process.stderr
    run = Result.from_path(folder / "my runs" / "run")
    assert [r["val"]["step"] for r in run.metrics_history] == [1, 2, 3]
    assert len(run.attempts) == 2


def test_of_two_that_restart_at_once_one_begins_and_nothing_is_lost(folder: Path) -> None:
    python(folder)
    edit(folder / "helper.py", "1.5", "2.5")
    processes = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=folder,
            env={**os.environ, "HPCTRAIN_EXISTING": "restart"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    ends = [process.communicate(timeout=60) for process in processes]
    losses: list[Any] = [Result.from_path(path).metrics["loss"] for path in aside(folder)]
    # One that comes when another has ended restarts that; while it lives, it is refused.
    assert losses[0] == 1.5
    for process, (said, error) in zip(processes, ends, strict=True):
        assert "loss 2.5" in said or "is running" in error, (said, error)
        assert process.returncode in (0, 2)
    assert Result.from_path(folder / "my runs" / "run").metrics["loss"] == 2.5
    assert all(re.fullmatch(r"run\.\d{8}-\d{6}(-\d)?", path.name) for path in aside(folder))


def test_a_flag_that_is_none_is_refused(folder: Path) -> None:
    process = python(folder, "-m", "hpctrain.cli", "run", "--existing", "anew", "train.py")
    assert process.returncode == 2
    assert "--existing=anew: one of auto, resume, restart, error" in process.stderr
    assert "HPCTRAIN_EXISTING='anew'" in told(python(folder, HPCTRAIN_EXISTING="anew"))


@pytest.mark.slurm
def test_a_job_that_slurm_starts_again_goes_on_although_a_module_was_edited(
    virtual_slurm: VirtualCluster, folder: Path
) -> None:
    environ = {**os.environ, **virtual_slurm.environ, "HPCTRAIN_EXISTING": "restart"}
    # What it does after its run lasts until the test has edited the module.
    script = f"""#!/bin/sh
{sys.executable} train.py && touch ended-$SLURM_RESTART_COUNT && while [ ! -e edited ]
do sleep 0.1; done
"""
    (folder / "job.sh").write_text(script)
    options = ["--parsable", "--requeue", "--open-mode=append", "--output=job.out", "-n1"]

    def slurm(*argv: str) -> str:
        return subprocess.check_output(argv, env=environ, cwd=folder, text=True).strip()

    def wait_for(condition: Any) -> None:
        wait_until(condition, (folder / "job.out").read_text, timeout_s=90)

    job_id = slurm("sbatch", *options, "job.sh")
    wait_for((folder / "ended-").exists)
    edit(folder / "helper.py", "1.5", "2.5")
    slurm("scontrol", "requeue", job_id)
    (folder / "edited").touch()
    wait_for((folder / "ended-1").exists)
    said = (folder / "job.out").read_text()
    assert "was finished before Slurm started this job again; what has changed since" in said
    assert "helper.py: edited" in said
    assert said.count("loss 1.5") == 2
    assert not aside(folder)
