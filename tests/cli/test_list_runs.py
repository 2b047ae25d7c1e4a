from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.list_runs import fit_rows, render_rows
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.testing.slurm import VirtualCluster


def test_runs_are_listed_the_newest_first(done: Any) -> None:
    lines = done("list").stdout.splitlines()
    assert lines[0].split() == [
        *("RUN", "STATE", "JOB", "ATTEMPT", "RANKS"),
        *("REPORTS", "CHECKPOINT", "STARTED", "METRICS"),
    ]
    assert [line.split()[:2] for line in lines[1:]] == [["bad", "failed"], ["fine", "finished"]]


@pytest.mark.parametrize(("columns", "is_whole"), [("60", False), (None, True)])
def test_a_pipe_gets_whole_lines_unless_columns_are_exported(
    done: Any, columns: str | None, is_whole: bool
) -> None:
    variables = {**done.environment, "COLUMNS": columns}
    listed = subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "list"],
        cwd=done.path,
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert ("STARTED" in listed[0]) is is_whole
    assert (max(map(len, listed)) <= 60) is not is_whole


def test_json_is_a_list_of_what_status_says(done: Any) -> None:
    listed = json.loads(done("list", "hpctrain_runs", "--json").stdout)
    for run, name in zip(listed, ("bad", "fine"), strict=True):
        # And what the run does now, for which more files are read.
        assert run.items() <= done.status(name).items()


def test_a_directory_that_is_not_there_is_a_usage_error(done: Any) -> None:
    ended = done("list", "elsewhere")
    assert ended.returncode == 2
    assert "elsewhere is not a directory" in ended.stderr


def test_a_directory_without_runs_is_named(done: Any) -> None:
    (done.path / "empty").mkdir()
    assert done("list", "empty").stdout == f"There are no runs in {done.path / 'empty'}.\n"
    assert json.loads(done("list", "empty", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hpctrain sta", ["status"]),
        ("hpctrain status f", ["fine"]),
        ("hpctrain logs ", ["bad", "fine"]),
        ("hpctrain status --storage nowhere f", []),
    ],
)
def test_a_shell_completes_verbs_and_runs(done: Any, words: str, expected: list[str]) -> None:
    variables = {
        "_HPCTRAIN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    ended = subprocess.run(
        [Path(sys.executable).with_name("hpctrain")],
        cwd=done.path,
        env={**done.environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(ended.stdout.split()) == expected, ended.stderr


def make_dead_runs(login: Any, count: int, *, silent_s: float) -> None:
    """Leave what runs leave whose jobs Slurm has forgotten."""
    for number in range(count):
        paths = RunPaths(login.run_dir(f"dead{number}"))
        paths.root.mkdir(parents=True, exist_ok=True)
        paths.plan.write_text("{}")
        status = RunStatus(
            name=paths.root.name, state=RunState.RUNNING, launcher="slurm", job_id=f"90000{number}"
        )
        write_status(paths, status)
        content = json.loads(paths.status.read_bytes())
        paths.status.write_text(json.dumps({**content, "updated_at": time.time() - silent_s}))


def listed(login: Any, *, path: str | None = None) -> dict[str, str]:
    """Return the states of runs by their names."""
    variables = [] if path is None else ["env", f"PATH={path}"]
    done = login.run([*variables, sys.executable, "-m", "hpctrain.cli", "list", "--json"])
    assert done.returncode == 0, done.stderr
    return {run["name"]: run["state"] for run in json.loads(done.stdout)}


def make_counting_programs(folder: Path) -> Path:
    """Make programs of Slurm that note that they are started, in a file that is returned."""
    calls = folder / "calls"
    calls.touch()
    (folder / "bin").mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} >>{calls}\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    return calls


@pytest.mark.slurm
def test_slurm_is_asked_once_for_all_runs_and_no_more_for_those_that_are_gone(
    login: Any, virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    def questions() -> int:
        counts = re.findall(r"REQUEST_JOB\w*INFO\w* .*count:(\d+)", _sdiag(virtual_slurm))
        _sdiag(virtual_slurm, "--reset")
        return sum(map(int, counts))

    make_dead_runs(login, 6, silent_s=60)
    questions()
    lost = {f"dead{number}": "lost" for number in range(6)}
    assert listed(login) == lost
    assert questions() == 1
    assert listed(login) == lost
    assert questions() == 1, "a job that has just ended may be queued again"
    make_dead_runs(login, 6, silent_s=7200)
    assert listed(login) == lost
    assert questions() == 1
    assert listed(login) == lost
    assert questions() == 0

    held = login("submit", "train.py", "--sbatch=--hold")
    assert held.returncode == 0, held.stderr
    questions()
    assert listed(login) == {**lost, "tiny": "submitted"}
    assert questions() == 1
    virtual_slurm.kill_controller()
    try:
        make_dead_runs(login, 6, silent_s=60)
        calls = make_counting_programs(tmp_path)
        states = listed(login, path=f"{tmp_path}/bin:{os.environ['PATH']}")
        assert states == dict.fromkeys(lost, "running") | {"tiny": "submitted"}, "not known"
        assert calls.read_text() == "squeue\n", "one question, not one for each run"
    finally:
        virtual_slurm.start_controller()


def _sdiag(cluster: VirtualCluster, *options: str) -> str:
    return cluster.run_on("head", ["sdiag", *options]).stdout


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_of_checkpoints_fits_a_terminal(width: int) -> None:
    from hpctrain.cli.checkpoints import _COLUMNS, _OPTIONAL

    columns = (*_COLUMNS[:-1], "VALIDATION", _COLUMNS[-1])
    row = ("000001", "1", "1", "64", "65", "1.134 KiB", "2 d", "complete", "done", "loss=1  acc=2")
    header, fitted = fit_rows([row], width=width, columns=columns, names={}, optional=_OPTIONAL)
    shown = dict(zip(header, fitted, strict=True))
    assert [shown[c] for c in ("CHECKPOINT", "STATE", "VALIDATION")] == [row[0], row[7], row[8]]
    assert shown["METRICS"].startswith("loss=1")
    if width >= 60:
        assert max(map(len, render_rows([fitted], header).splitlines())) <= width
