from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.submit import submit_successor


@pytest.fixture
def run_in_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a run with a stored script, in a process that Slurm started."""
    paths = RunPaths(tmp_path / "run")
    paths.submission.mkdir(parents=True)
    paths.batch_script.write_text("#!/bin/bash\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return paths


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a program in the place of sbatch."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("env", "printf", "timeout", "sh", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(folder))

    def put(end: str) -> None:
        (folder / "sbatch").write_text(f"#!/bin/sh\n{end}\n")
        (folder / "sbatch").chmod(0o755)

    return put


def test_a_successor_is_submitted_without_what_wins_over_its_script(
    run_in_job: RunPaths, tmp_path: Path, sbatch, monkeypatch: pytest.MonkeyPatch
):
    for name in ("SBATCH_SIGNAL", "SBATCH_PARTITION", "SLURM_NTASKS", "SLURM_CONF", "MINE"):
        monkeypatch.setenv(name, "1")
    sbatch(f'env > {tmp_path}/seen; echo "$@" > {tmp_path}/argv; echo Submitted batch job 8')
    assert submit_successor(run_in_job, patience_s=0, why="", checkpoint=None) == "8"
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"MINE", "SLURM_CONF"} <= seen
    assert not seen & {"SBATCH_SIGNAL", "SBATCH_PARTITION", "SLURM_NTASKS", "SLURM_JOB_ID"}
    assert (tmp_path / "argv").read_text().split() == [str(run_in_job.batch_script)]
    events = [(e["event"], e["job_id"]) for e in read_events(run_in_job)]
    assert events == [("handing-over", "7"), ("successor", "8")]


def test_the_job_is_the_one_that_sbatch_names_whatever_else_is_printed(
    run_in_job: RunPaths, sbatch
):
    sbatch(
        r"""printf 'Quota of J\374rgen: 3 of 9 h. Your last job 41 used 1 h.\n'
        printf 'r\351serv\351\n' >&2
        echo Submitted batch job 42 on cluster here
        echo See https://site.example/job 43"""
    )
    assert submit_successor(run_in_job, patience_s=0, why="", checkpoint=None) == "42"


def test_a_refusal_in_another_encoding_is_one(run_in_job: RunPaths, sbatch):
    sbatch(r"printf 'sbatch: error: Compte r\351serv\351\n' >&2; exit 1")
    with pytest.raises(LaunchError, match=r"^sbatch: error: Compte r\\xe9serv\\xe9$"):
        submit_successor(run_in_job, patience_s=-1, why="", checkpoint=None)


def test_a_script_that_cannot_be_read_at_the_moment_is_tried_again(run_in_job: RunPaths, sbatch):
    sbatch("echo Submitted batch job 42")
    run_in_job.batch_script.unlink()
    with pytest.raises(LaunchError, match=r"the script of the job: .*No such file") as raised:
        submit_successor(run_in_job, patience_s=-1, why="", checkpoint=None)
    assert raised.value.transient


@pytest.mark.parametrize(
    ("end", "message", "transient"),
    [
        ("echo 8", "a job may wait all the same. Look for it with 'squeue --me'", False),
        ("echo sbatch: error: Invalid qos >&2; exit 1", "^sbatch: error: Invalid qos$", False),
        ("exit 5", "sbatch ended with 5", False),
        ("echo sbatch: error: Unable to contact it >&2; exit 1", "Unable to contact", True),
        ("exit 124", "sbatch did not answer within 10 s", True),
        ("exec no-such-program", "sbatch is not on PATH. Load Slurm's module", False),
    ],
)
def test_what_went_wrong_is_said(run_in_job: RunPaths, sbatch, end, message, transient):
    sbatch(end)
    with pytest.raises(LaunchError, match=message) as raised:
        submit_successor(run_in_job, patience_s=-1, why="", checkpoint=None)
    assert raised.value.transient is transient
