"""What a shell remembers may be gone: the job that it was in, or its working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.testing.slurm import VirtualCluster

FIT = """
import sys
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

def train():
    pass

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=int(sys.argv[2])),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
"""


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=90
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FIT)
    return path


@pytest.mark.slurm
def test_a_job_that_has_ended_is_named_with_the_way_out(
    virtual_slurm: VirtualCluster, script: Path, tmp_path: Path
) -> None:
    # What a shell has that was started inside a job, in a tmux that outlives it.
    inside = run(["salloc", "-Q", "-N1", "env", "-0"], **virtual_slurm.environ).stdout
    variables = dict(line.split("=", 1) for line in inside.split("\0") if "=" in line)
    stale = {name: value for name, value in variables.items() if name.startswith("SLURM_")}
    virtual_slurm.run_on("head", ["scontrol", "wait_job", stale["SLURM_JOB_ID"]])
    for job_id, how in ((stale["SLURM_JOB_ID"], "COMPLETED"), ("999999", "Slurm has forgotten it")):
        done = run(
            [sys.executable, "-m", "hpctrain.cli", "run", str(script), str(tmp_path), "2"],
            **{**virtual_slurm.environ, **stale, "SLURM_JOB_ID": job_id},
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"SLURM_JOB_ID={job_id} is set here, but that job has ended ({how})" in done.stderr
        assert "forget the job first (in bash: unset ${!SLURM_*})" in done.stderr
        assert not (tmp_path / "run").exists()
    forgotten = run(
        ["bash", "-c", "unset ${!SLURM_JOB*} ${!SLURM_N*}; env | grep -c ^SLURM_JOB"], **stale
    )
    assert forgotten.stdout == "0\n", "bash understands the advice"


def in_deleted_directory(argv: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    command = 'cd "$0" && rmdir "$0" && exec "$@"'
    return run(["bash", "-c", command, str(directory), *argv], HPCTRAIN_LAUNCHER="local")


@pytest.mark.parametrize(
    "verb",
    [
        *("list", "status run", "wait run", "attach run", "cancel run", "logs run"),
        *("checkpoints run", "run train.py", "submit train.py"),
    ],
)
def test_a_verb_in_a_deleted_directory_says_so(verb: str, tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).with_name("hpctrain")), *verb.split()]
    done = in_deleted_directory(argv, tmp_path / "gone")
    assert done.returncode == 2
    assert done.stderr == (
        f"hpctrain: the working directory of this process, {tmp_path}/gone, was deleted: No such "
        f'file or directory. cd to one that exists (cd "$PWD" if it was recreated), and run the '
        f"command again.\n"
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_fit_in_a_deleted_directory_says_so(script: Path, tmp_path: Path, num_workers: int) -> None:
    argv = [sys.executable, str(script), str(tmp_path), str(num_workers)]
    done = in_deleted_directory(argv, tmp_path / "gone")
    assert done.returncode == 2
    assert f"ConfigError: the working directory of this process, {tmp_path}/gone, was deleted" in (
        done.stderr
    )
    assert not (tmp_path / "run").exists()
