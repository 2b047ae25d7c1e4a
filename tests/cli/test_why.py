"""What ``hpctrain why`` prints: whole at 80 and 120 columns, and of jobs of a virtual cluster."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain import Result
from hpctrain.cli.json_output import schema
from hpctrain.cli.main import app
from hpctrain.cli.run_view import RunView
from hpctrain.cli.terminal import wrap
from hpctrain.cli.why import render, to_json
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.slurm.output import Job
from hpctrain.slurm.waiting import Verdict
from hpctrain.slurm.why import Explanation
from hpctrain.testing.slurm import VirtualCluster
from tests.cli.test_json_output import check

GOLDEN = Path(__file__).parent / "golden"
_TOO_LONG = Explanation(
    job=Job(
        job_id="412",
        state="PENDING",
        reason="QOSMaxWallDurationPerJobLimit",
        time_limit="12:00:00",
    ),
    verdict=Verdict.NEVER,
    meaning="it asks for more than one job can ever have, so it never starts",
    details=["QOS 'brief': 01:00:00 for a job at most. The job asks for 12:00:00"],
    step="Shorten it as it waits (scontrol update JobId=412 TimeLimit=01:00:00), or submit it with "
    "SlurmConfig(time='01:00:00')",
)
_SOON = Explanation(
    job=Job(
        job_id="7",
        state="PENDING",
        reason="Priority",
        start_time=time.mktime((2030, 1, 2) + (3,) * 6),
    ),
    verdict=Verdict.WAITS,
    meaning="jobs with a higher priority are before it",
    details=["of 12 jobs that wait in partition 'gpu', 3 are before it"],
)
_ENDED = Explanation(
    job=Job(job_id="8", state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code="0:125"),
    verdict=Verdict.ENDED,
    meaning="a process used more memory than the job has on its node, and the kernel killed it",
    step="Ask for more memory (SlurmConfig(mem=...), sbatch --mem), or use more nodes",
)
_FAILED = RunView(
    name="llama",
    path=Path("/scratch/project_465000000/somebody/hpctrain_runs/llama"),
    state="failed",
    live=False,
    status=RunStatus(
        name="llama",
        state=RunState.FAILED,
        launcher="slurm",
        error="rank 3 on node7 failed: ValueError: the loss is\nnot finite",
    ),
    next_step="python train.py   resumes from 000120",
    slow_nodes=(
        "attempt 1: node node7 is slow since step 120: steps take 2.5 times as long: its CPUs "
        "are busy with processes of others; it is kept: there is no other node",
    ),
)
CASES: dict[str, tuple[Explanation | None, RunView | None]] = {
    "never": (_TOO_LONG, None),
    "waits": (_SOON, None),
    "ended": (_ENDED, None),
    "a run that failed": (None, _FAILED),
}


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_is_as_in_the_golden_file(width: int, request: pytest.FixtureRequest) -> None:
    text = "".join(f"== {name}\n{render(*case, width=width)}\n" for name, case in CASES.items())
    assert max(map(len, text.splitlines())) <= width
    golden = GOLDEN / f"why-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_json_is_what_the_schema_says(case: tuple[Any, Any]) -> None:
    check({"format": 1, **to_json(*case)}, schema("why"))


@pytest.mark.parametrize("width", [None, 60])
def test_the_empty_line_before_a_traceback_stays(width: int | None) -> None:
    value = "rank 3 failed\n\nTraceback (most recent call last):\n  File"
    assert wrap("error  ", value, width) == [
        "error  rank 3 failed",
        "",
        "       Traceback (most recent call last):",
        "         File",
    ]


def test_values_of_others_cannot_write_into_the_terminal() -> None:
    nasty = Explanation(
        job=Job(job_id="7", state="PENDING", reason="\x1b[2J"),
        verdict=Verdict.ADMIN,
        meaning="a",
        details=["node1 is drained: \x1b]0;title\x07"],
    )
    assert "\x1b" not in render(nasty, None, width=80)
    assert "\x1b" not in render(nasty, None, width=None)


@pytest.mark.slurm
def test_a_job_of_anybody_and_one_that_never_starts(in_slurm: VirtualCluster) -> None:
    options = ["--parsable", "--output=/dev/null", "--partition=short", "--time=5", "--wrap=true"]
    job = in_slurm.run_on("head", ["sbatch", *options]).stdout.strip()
    try:
        said = CliRunner().invoke(app, ["why", job])
        assert said.exit_code == 3, said.output
        assert said.stdout.startswith(f"job {job}: pending for ")
        assert "partition 'short': a time limit of 00:02:00 at most" in said.stdout
        told = json.loads(CliRunner().invoke(app, ["why", "--json", job]).stdout)
        check(told, schema("why"))
        assert told["verdict"] == "never"
    finally:
        in_slurm.run_on("head", ["scancel", job])


@pytest.mark.slurm
def test_a_job_that_slurm_does_not_know(in_slurm: VirtualCluster) -> None:
    said = CliRunner().invoke(app, ["why", "999999"])
    # 3 would say that it never starts.
    assert said.exit_code == 4
    assert "Slurm has forgotten job 999999" in said.output
    assert "no accounting" in said.output


@pytest.mark.slurm
def test_tasks_of_an_array_and_names_that_are_no_utf_8(in_slurm: VirtualCluster) -> None:
    # The job's name pretends to be the fields of another one.
    name = r"$'caf\xe9 UserId=you(7) JobState=FAILED ExitCode=9:0'"
    command = f"sbatch --parsable --hold --array=1-3 --output=/dev/null -J {name} --wrap=true"
    job = in_slurm.run_on("head", ["bash", "-c", command]).stdout.strip()
    try:
        for words in (job, f"{job}_2", f"{job}_[1-3]"):
            said = CliRunner().invoke(app, ["why", words])
            assert said.exit_code == 0, said.output
            assert re.match(rf"job \d+ \(task {job}_.*\): pending", said.stdout), said.stdout
            assert "scontrol release" in said.stdout
    finally:
        in_slurm.run_on("head", ["scancel", job])
    assert CliRunner().invoke(app, ["why", "0"]).exit_code == 2


def test_what_is_neither_a_job_nor_a_run_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["why", "nothing", "--storage", str(tmp_path)])
    assert said.exit_code == 2
    assert "is not a run directory" in said.output


def test_a_run_that_failed_says_why(done: Any) -> None:
    said = done("why", "bad")
    assert said.stdout.startswith("bad: failed\n")
    assert "the loss is gone" in said.stdout
    assert "error" in said.stdout
    assert Result.from_path(Path(said.stdout.split("run         ")[1].split("\n")[0])).error
