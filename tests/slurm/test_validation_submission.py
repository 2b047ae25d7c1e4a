"""The script of the job of a validation, run by a real shell, and what is kept of the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import LaunchError
from hpctrain.plan.spec import ValidationJob
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm import validation_submission
from hpctrain.slurm.job import find_jobs_of_script
from hpctrain.slurm.output import Job
from hpctrain.slurm.validation_submission import (
    end_file,
    explain_job_end,
    make_validation_script,
    names_spec,
    read_record,
    record_file,
    submit_validation,
    validation_jobs,
)

JOB = ValidationJob(
    directives={"job-name": "it's", "partition": "gpu", "no-requeue": None},
    setup=("export OF_SETUP='a b'",),
    environment={"OF_SITE": "$HOME 'x'"},
    cpus=2,
)

DIGEST = 64 * "a"
SCRIPT = f"#!/bin/bash\npython -m hpctrain.worker.validate {DIGEST} 0\n"


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "name": "000003",
        "report": 3,
        "attempt": 2,
        "world_size": 1,
        "metrics": {},
        "files": (),
        "created_at": 5.0,
        "versions": {},
        "validation": {"fn_kwargs": {}, "timeout_s": None},
    }
    return Manifest(**{**fields, **changes})


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "it's one")
    paths.submission.mkdir(parents=True)
    paths.logs(2).mkdir(parents=True)
    paths.spec.write_bytes(b"")
    return paths


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(paths: RunPaths, tmp_path: Path) -> Start:
    """Return what starts the script of a command, as slurmd does."""

    def start(*argv: str, job: ValidationJob = JOB, **options: Any) -> subprocess.Popen[bytes]:
        given: dict[str, Any] = {"cwd": str(tmp_path), "use_gpu": False, "timeout_s": None}
        script = paths.validation_job(2, 3)
        script.write_text(
            make_validation_script(job, paths, manifest(), argv=argv, **{**given, **options})
        )
        log = paths.validation_log(2, 3)
        with log.open("w") as output:
            return subprocess.Popen(
                ["bash", str(script)],
                stdout=output,
                stderr=output,
                env={**os.environ, "SLURM_JOB_ID": "12"},
            )

    return start


def printed(paths: RunPaths) -> str:
    return paths.validation_log(2, 3).read_text()


def end_of(paths: RunPaths) -> int:
    status, seconds, job_id = end_file(paths.validation_job(2, 3)).read_text().split()
    assert (int(seconds) < 60, job_id) == (True, "12")
    return int(status)


def test_its_directives_are_those_of_the_plan_and_the_log_of_the_validation(
    paths: RunPaths, tmp_path: Path
) -> None:
    text = make_validation_script(
        JOB, paths, manifest(), argv=["true"], cwd=str(tmp_path), use_gpu=True, timeout_s=1.5
    )
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        "#SBATCH --job-name='it'\"'\"'s'",
        "#SBATCH --no-requeue",
        "#SBATCH --nodes=1",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output='{tmp_path}/it'\"'\"'s one/logs/2/validation-000003.out'",
        "#SBATCH --partition=gpu",
        "#SBATCH --signal=USR2@1",
    ]
    assert "timeout --kill-after=5 1.5 true" in text
    assert "CUDA_VISIBLE_DEVICES" not in text


def test_a_validation_has_the_variables_of_the_site_and_sees_no_gpu(
    start: Start, paths: RunPaths, tmp_path: Path
) -> None:
    code = (
        "import os; print([os.environ.get(n) for n in "
        "('OF_SETUP', 'OF_SITE', 'CUDA_VISIBLE_DEVICES', 'HPCTRAIN_RANK')], os.getcwd())"
    )
    start(sys.executable, "-c", code).wait(60)
    assert printed(paths) == f"['a b', \"$HOME 'x'\", '', '1'] {tmp_path}\n"
    assert end_of(paths) == 0


@pytest.mark.parametrize(("argv", "status"), [(["false"], 1), (["sh", "-c", "kill -9 $$"], 137)])
def test_the_script_writes_down_how_it_ends(
    start: Start, paths: RunPaths, argv: list[str], status: int
) -> None:
    assert start(*argv).wait(60) == status
    assert end_of(paths) == status
    assert [path.name for path in paths.submission.glob("*.part")] == []


def test_a_setup_that_ends_the_script_is_written_down(start: Start, paths: RunPaths) -> None:
    job = ValidationJob(directives=JOB.directives, setup=("exit 3",), environment={}, cpus=1)
    start("true", job=job).wait(60)
    assert end_of(paths) == 3


def test_a_node_that_does_not_see_the_run_says_so(start: Start, paths: RunPaths) -> None:
    paths.spec.unlink()
    start("true").wait(60)
    assert "does not see the run directory" in printed(paths)
    assert end_of(paths) == 66


def test_a_validation_ends_after_its_time(start: Start, paths: RunPaths) -> None:
    start("sleep", "60", timeout_s=0.5).wait(30)
    assert end_of(paths) == 124


def test_a_script_that_slurm_warns_waits_for_its_child_and_writes_its_end(
    start: Start, paths: RunPaths, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    shell = start("sh", "-c", f"touch {begun}; sleep 1; exit 143")
    while not begun.exists():
        time.sleep(0.02)
    # To the processes of a job at its end.
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(30) == 143
    assert end_of(paths) == 143


def test_a_validation_runs_only_what_was_submitted(start: Start, paths: RunPaths) -> None:
    argv = [sys.executable, "-m", "hpctrain.worker.validate", str(paths.root), "000003"]
    start(*argv, str(paths.root / "result"), "0" * 64, "0").wait(60)
    assert "is not what was submitted" in printed(paths)
    assert end_of(paths) != 0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs in the place of Slurm's that keep what they were given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("env", "timeout", "sh", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "")
    programs = {
        "sbatch": "echo Submitted batch job 12",
        "squeue": f"cat {folder}/queue",
        "scancel": "",
    }
    for name, says in programs.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/calls\n{says}\n')
        program.chmod(0o755)
    (folder / "queue").write_text("")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_job_is_submitted_once_and_its_id_kept(paths: RunPaths, slurm: Path) -> None:
    script = paths.validation_job(2, 3)
    # Of an earlier try.
    end_file(script).write_text("1 1")
    assert submit_validation(paths, manifest(), SCRIPT, digest=DIGEST) == "12"
    assert (slurm / "calls").read_text() == f"sbatch {script}\n"
    assert not end_file(script).exists()
    assert script.stat().st_mode & 0o777 == 0o600
    assert read_record(script, manifest()) == "12"
    assert validation_jobs(paths) == {script: "12"}


def test_a_job_whose_id_cannot_be_written_down_is_not_lost(
    paths: RunPaths,
    slurm: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse_record(path: Path, content: bytes, **options: Any) -> None:
        if path.suffix == ".json":
            raise OSError(28, "No space left on device")
        write_atomic(path, content, **options)

    monkeypatch.setattr(validation_submission, "write_atomic", refuse_record)
    assert submit_validation(paths, manifest(), SCRIPT, digest=DIGEST) == "12"
    assert "job 12, which validates checkpoint 000003" in capsys.readouterr().err


def test_a_job_whose_id_was_lost_is_found_in_the_queue(paths: RunPaths, slurm: Path) -> None:
    script = paths.validation_job(2, 3)
    script.write_text(SCRIPT)
    (slurm / "queue").write_text(f"7|COMPLETED|{script}\n8|PENDING|{script}\n9|RUNNING|/other\n")
    assert submit_validation(paths, manifest(), SCRIPT, digest=DIGEST) == "8"
    assert "sbatch" not in (slurm / "calls").read_text()
    assert read_record(script, manifest()) == "8"


def test_a_job_of_an_earlier_spec_is_cancelled_and_replaced(paths: RunPaths, slurm: Path) -> None:
    script = paths.validation_job(2, 3)
    script.write_text(SCRIPT.replace("a", "b"))
    (slurm / "queue").write_text(f"8|PENDING|{script}\n9|RUNNING|/other\n")
    assert submit_validation(paths, manifest(), SCRIPT, digest=DIGEST) == "12"
    calls = (slurm / "calls").read_text().splitlines()[1:]
    assert calls == ["scancel 8", f"sbatch {script}"]
    assert script.read_text() == SCRIPT
    assert read_record(script, manifest()) == "12"


def test_a_job_is_known_by_another_path_to_its_run(
    paths: RunPaths, slurm: Path, tmp_path: Path
) -> None:
    submit_validation(paths, manifest(), SCRIPT, digest=DIGEST)
    link = tmp_path / "link"
    link.symlink_to(paths.root)
    script = RunPaths(link).validation_job(2, 3)
    assert read_record(script, manifest()) == "12"
    assert validation_jobs(RunPaths(link)) == {script: "12"}
    (slurm / "queue").write_text(f"12|PENDING|{paths.validation_job(2, 3)}\n")
    assert [job.job_id for job in find_jobs_of_script(script)] == ["12"]


def test_a_submission_that_fails_leaves_no_record_of_the_job_before(
    paths: RunPaths, slurm: Path
) -> None:
    script = paths.validation_job(2, 3)
    submit_validation(paths, manifest(), SCRIPT.replace("a", "b"), digest=64 * "b")
    assert read_record(script, manifest()) == "12"
    (slurm / "sbatch").write_text("#!/bin/sh\necho sbatch: error: Invalid qos >&2\nexit 1\n")
    with pytest.raises(LaunchError, match="Invalid qos"):
        submit_validation(paths, manifest(), SCRIPT, digest=DIGEST)
    assert read_record(script, manifest()) is None


def test_a_script_that_cannot_be_read_now_is_not_that_of_another_spec(paths: RunPaths) -> None:
    script = paths.validation_job(2, 3)
    assert not names_spec(script, DIGEST)
    script.mkdir()
    assert names_spec(script, DIGEST)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        {"job_id": "7", "script": "/of/another/run.sh", "created_at": 5.0},
        {"job_id": "--all", "created_at": 5.0},
    ],
    ids=["empty", "list", "nothing", "a copy of a run", "an option"],
)
def test_what_is_no_record_of_this_run_names_no_job(paths: RunPaths, record: Any) -> None:
    script = paths.validation_job(2, 3)
    if isinstance(record, dict):
        record = json.dumps({"script": str(script), **record}).encode()
    record_file(script).write_bytes(record)
    assert read_record(script, manifest()) is None
    assert validation_jobs(paths) == {}


def test_the_job_of_another_checkpoint_of_the_name_is_not_taken_over(
    paths: RunPaths, slurm: Path
) -> None:
    submit_validation(paths, manifest(), SCRIPT, digest=DIGEST)
    assert read_record(paths.validation_job(2, 3), manifest(created_at=6.0)) is None


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("OUT_OF_MEMORY", "used more memory than it had: ask for more with resources={'memory'"),
        ("TIMEOUT", "reached its time limit: ask for more with SlurmConfig(time=...)"),
        ("CANCELLED", "its job 7 was cancelled"),
        ("PREEMPTED", "sbatch_args=['--requeue']"),
        ("NODE_FAIL", "lost its node (node3)"),
        ("DEADLINE", "its job 7 ended (DEADLINE, ExitCode 0:15, None)"),
    ],
)
def test_the_end_of_a_job_is_put_into_words(state: str, said: str) -> None:
    job = Job(job_id="7", state=state, nodes="node3", exit_code="0:15", reason="None")
    assert said in explain_job_end(job)
