"""What is submitted is what was shown, whatever the environment asks of sbatch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.rundir.trust import digest_spec
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
TIMEOUT_S = 90

SCRIPT = """
import time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    # The first job is asked to leave; the second one finishes.
    for step in range(3 if hpctrain.get_context().world.attempt > 1 else 100000):
        hpctrain.report({"step": step})
        if hpctrain.should_stop():
            return
        time.sleep(0.05)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(
            num_workers=2,
            slurm=SlurmConfig(nodes=1, time="9:30", stop_notice_s=45, SLURM),
        ),
        run_config=RunConfig(name="one", storage_path="it's $(touch MARK) $HOME"),
    ).fit()
"""
COMMENT = 'it\'s a "#1" run \\ of $HOME'
# Each of them wins over the lines of a script.
HOSTILE = {
    "SBATCH_SIGNAL": "USR1@1",
    "SBATCH_OPEN_MODE": "truncate",
    "SBATCH_ARRAY_INX": "0-1",
    "SBATCH_WAIT": "1",
    "SBATCH_OUTPUT": "/nowhere/%j",
    "SBATCH_JOB_NAME": "mine",
    "SBATCH_GPUS": "3",
}
WELCOME = {"SBATCH_PARTITION": "low", "SBATCH_NO_REQUEUE": "1", "SBATCH_TIMELIMIT": "1"}
# Of an allocation from which somebody submits.
OF_A_JOB = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": "1", "SLURM_NTASKS_PER_NODE": "7"}


class Login:
    """A directory on a login node of the cluster."""

    def __init__(self, path: Path, cluster: VirtualCluster, slurm: str, **variables: str) -> None:
        (path / "train.py").write_text(SCRIPT.replace("SLURM", slurm))
        self.path = path
        self.run_dir = path / "it's $(touch MARK) $HOME" / "one"
        self.clean = {
            **{name: value for name, value in os.environ.items() if "HPCTRAIN" not in name},
            **cluster.environ,
        }
        self.environment = {**self.clean, **variables, "HPCTRAIN_LAUNCHER": "slurm"}

    def __call__(self, *argv: str, clean: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.path,
            env=self.clean if clean else self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def slurm(self, *argv: str) -> str:
        answer = self(*argv, clean=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def job(self, job_id: str) -> dict[str, str]:
        shown = self.slurm("scontrol", "show", "job", job_id)
        words = re.findall(r"(\S+?)=(\S*)", shown)
        # These have a line of their own, and may hold blanks.
        lines = re.findall(r"^   (Command|Comment|StdOut|WorkDir)=(.*)$", shown, re.MULTILINE)
        return dict([*words, *lines])

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, lambda: f"{what}\n{self.logs()}", timeout_s=TIMEOUT_S)

    def logs(self) -> str:
        files = [*self.run_dir.glob("slurm/*.out"), self.run_dir / "ledger.jsonl"]
        return "\n".join(file.read_text() for file in files if file.exists())


def test_a_run_and_its_successor_are_submitted_as_the_dry_run_says(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    options = [f"--comment={COMMENT}", "--hold", "--chdir=/tmp"]
    login = Login(
        tmp_path, virtual_slurm, f"sbatch_args={options!r}", **HOSTILE, **WELCOME, **OF_A_JOB
    )
    shown = login(*HPCTRAIN, "submit", "--dry-run", "train.py")
    assert shown.returncode == 0, shown.stderr
    for name, value in HOSTILE.items():
        assert f"hpctrain: warning: {name}={value} is ignored: use " in shown.stderr
    assert "# the first job is submitted with --hold\n" in shown.stdout
    script = shown.stdout[shown.stdout.index("#!/bin/bash") :]
    script = script[: script.index("exit $status") + len("exit $status")]
    submitted = login(*HPCTRAIN, "submit", "train.py")
    assert submitted.returncode == 0, submitted.stderr
    first = submitted.stdout.strip()
    try:
        job = login.job(first)
        assert (job["JobState"], job["Reason"]) == ("PENDING", "JobHeldUser")
        assert "ArrayTaskId" not in job
        check_job(login, job, script)
        login.slurm("scontrol", "release", first)
        metrics = login.run_dir / "metrics.jsonl"
        login.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first report")
        login.slurm("scancel", "--signal=USR2", first)
        login.wait_for(lambda: Result.from_path(login.run_dir).state == "finished", "the end")
    finally:
        login("scancel", "--name=one", clean=True)
    ran_in = Result.from_path(login.run_dir).job_ids
    assert ran_in[0] == first
    assert len(ran_in) == 2
    # Nobody has to release the successor.
    check_job(login, login.job(ran_in[1]), script)
    # No leftovers of a submission.
    assert {path.name for path in (login.run_dir / "slurm").iterdir()} == {
        "batch.sh",
        *(f"{job}_0_log.out" for job in ran_in),
    }


def check_job(login: Login, job: dict[str, str], script: str) -> None:
    """Compare a job with what the dry run printed."""
    assert job["JobName"] == "one"
    assert job["Partition"] == "low"
    assert job["Requeue"] == "0"
    assert (job["NumNodes"].partition("-")[0], job["NumTasks"], job["CPUs/Task"]) == ("1", "2", "1")
    assert job["Comment"].strip() == COMMENT
    assert job["WorkDir"] == "/tmp"
    # What the user says wins over SBATCH_TIMELIMIT.
    assert job["TimeLimit"] == "00:10:00"
    assert job["StdOut"] == str(login.run_dir / "slurm" / f"{job['JobId']}_0_log.out")
    # ReqTRES since Slurm 23.02, TRES before.
    assert "gpu" not in job.get("ReqTRES", job.get("TRES"))
    assert job["Command"] == str(login.run_dir / "slurm" / "batch.sh")
    stored = Path(job["Command"]).read_text()
    written = login.slurm("scontrol", "write", "batch_script", job["JobId"], "-")
    # Slurm's copy says what the job may run.
    digest = digest_spec((login.run_dir / "spec.pkl").read_bytes())
    assert stored.count(f" {digest}\n") == 1
    assert stored.replace(f" {digest}\n", "\n") == script
    assert written.rstrip("\n\0") == stored


def test_a_line_of_the_setup_that_ends_the_job_is_named_with_the_log(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    login = Login(tmp_path, virtual_slurm, "setup=['exit 3']")
    ended = login(sys.executable, "train.py")
    job_id = Result.from_path(login.run_dir).status.job_id
    assert ended.returncode == LaunchError.exit_code
    assert f"job {job_id} ended (FAILED, ExitCode 3:0" in ended.stderr
    assert "look at the lines of SlurmConfig(setup=...) and of the site profile" in ended.stderr
    assert f"Its log: {login.run_dir}/slurm/{job_id}_0_log.out" in ended.stderr


@pytest.mark.parametrize("character", ["%", "\\"])
def test_a_storage_path_that_slurm_would_read_as_a_pattern_is_refused(
    virtual_slurm: VirtualCluster, tmp_path: Path, character: str
) -> None:
    place = tmp_path / f"a{character}j"
    place.mkdir()
    ended = Login(place, virtual_slurm, "")(sys.executable, "train.py")
    assert ended.returncode == ConfigError.exit_code
    assert f"holds {character!r}, but Slurm replaces patterns such as %j" in ended.stderr
    assert not (place / "it's $(touch MARK) $HOME").exists()
