from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.run_view import RunView
from hpctrain.cli.status import render_view
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from tests.cli.conftest import HPCTRAIN
from tests.cli.live_views import NOW, large_view

GOLDEN = Path(__file__).parent / "golden"
_AT_WORK = large_view()
_STARTED = {"launcher": "slurm", "attempt": 1, "world_size": 8, "started_at": NOW - 3725}
CASES: dict[str, tuple[RunView, LiveView | None]] = {
    "at work": (
        RunView(
            name=_AT_WORK.name,
            path=_AT_WORK.path,
            state="running",
            live=True,
            status=_AT_WORK.status,
            reports=1200,
            reported_at=_AT_WORK.reported_at,
            metrics=_AT_WORK.metrics,
        ),
        _AT_WORK,
    ),
    "waits": (
        RunView(
            name="waits",
            path=Path("/scratch/project_465000000/somebody/hpctrain_runs/waits"),
            state="submitted",
            live=True,
            status=RunStatus(
                name="waits",
                state=RunState.SUBMITTED,
                launcher="slurm",
                job_id="412",
                started_at=NOW - 60,
            ),
            job_state="PENDING",
            job_reason="QOSMaxWallDurationPerJobLimit",
            next_step="hpctrain attach waits   follows it",
        ),
        None,
    ),
    "failed": (
        RunView(
            name="llama",
            path=Path("/scratch/project_465000000/somebody/hpctrain_runs/llama"),
            state="failed",
            live=False,
            status=RunStatus(
                name="first-llama",
                state=RunState.FAILED,
                nodes=tuple(f"n{number}" for number in range(1, 20, 2)),
                job_id="413",
                error="rank 3 on n7 failed: RuntimeError: Expected all tensors to be on the same "
                "device, but found at least two devices, cuda:0 and cpu!\n"
                "train.py:44, in train: loss = model(batch)\x1b[2J",
                ended_at=NOW - 90,
                **_STARTED,
            ),
            reports=7,
            reported_at=NOW - 300,
            metrics={f"validation/metric_{number}": number / 3 for number in range(8)},
            checkpoint=Path("/scratch/project_465000000/somebody/hpctrain_runs/llama/000120"),
            next_step="python train.py   resumes from 000120",
        ),
        None,
    ),
    "lost, damaged": (
        RunView(
            name="r" * 70,
            path=Path("/runs/r"),
            state="lost",
            live=False,
            status=RunStatus(
                name="r" * 70,
                state=RunState.RUNNING,
                owner_pid=4711,
                owner_host="login1",
                damage="status.json is damaged: it ends in the middle of an object, after 4096 "
                "bytes",
                **{**_STARTED, "launcher": "local"},
            ),
        ),
        None,
    ),
}


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits_the_terminal_and_is_as_in_the_golden_file(
    width: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    text = "".join(
        f"== {name}\n{render_view(*case, width=width)}\n" for name, case in CASES.items()
    )
    assert max(map(len, text.splitlines())) <= width
    golden = GOLDEN / f"status-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_program_gets_each_value_in_one_piece(case: tuple[RunView, LiveView | None]) -> None:
    view = case[0]
    text = render_view(*case)
    assert "\x1b" not in text
    for value in (view.status.last_restart, view.next_step, view.status.damage):
        assert (value or "") in text


def test_the_command_takes_the_width_of_the_terminal(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "hpctrain_runs" / "bad")
    paths.root.mkdir(parents=True)
    paths.plan.write_text("{}")
    error = "rank 1 failed: " + "ValueError: no " * 12
    status = RunStatus(name="bad", state=RunState.FAILED, launcher="local", error=error)
    write_status(paths, status)
    argv, environ = [*HPCTRAIN, "status", "bad"], {**os.environ, "PYTHONPATH": os.getcwd()}
    shown = {}
    for columns in ("80", "120", ""):
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env={**environ, "COLUMNS": columns},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        shown[columns] = [line for line in done.stdout.splitlines() if "ValueError" in line]
    assert [len(shown[columns]) for columns in ("80", "120", "")] == [4, 2, 1]


def test_a_finished_run_shows_its_progress_and_no_next_step(done: Any) -> None:
    view = done.status("fine")
    assert (view["state"], view["live"], view["reports"], view["attempt"]) == (
        "finished",
        False,
        3,
        1,
    )
    assert view["metrics"]["double"] == 4
    assert view["path"] == str(done.run_dir("fine"))
    assert view["error"] is None
    assert view["next"] is None


def test_the_text_for_a_finished_run(done: Any) -> None:
    text = done("status", "hpctrain_runs/fine").stdout
    text = re.sub(r"\d+ (s|min)", "N s", text.replace(str(done.path), "HERE"))
    text = re.sub(r"process \d+ on \S+", "process P on NODE", text)
    assert re.sub(r"ranks on \S+", "ranks on NODE", text) == (
        "fine: finished\n"
        "  path        HERE/hpctrain_runs/fine\n"
        "  executor    process P on NODE\n"
        "  attempt     1: 2 ranks on NODE\n"
        "  reports     3, N s ago\n"
        "  metrics     loss=0.333333  double=4\n"
        "  started     N s ago\n"
        "  ended       N s ago\n"
    )


def test_a_failed_run_shows_the_error_and_how_to_go_on(done: Any) -> None:
    view = done.status("bad")
    assert view["state"] == "failed"
    assert "ValueError: the loss is gone" in view["error"]
    assert view["next"] == "python train.py --name bad --fail-at 1   begins it again"
    text = done("status", "bad").stdout
    assert "ValueError: the loss is gone" in " ".join(text.split())


def test_a_name_is_looked_up_in_storage_and_a_directory_is_taken_as_it_is(done: Any) -> None:
    by_name = done("status", "fine", "--storage", str(done.path / "hpctrain_runs"), "--json")
    by_path = done("status", str(done.run_dir("fine")), "--json")
    assert json.loads(by_name.stdout) == json.loads(by_path.stdout)


def test_an_unknown_run_is_a_usage_error_that_names_the_runs_there_are(done: Any) -> None:
    ended = done("status", "fien")
    assert ended.returncode == 2
    assert ended.stderr.startswith("hpctrain: fien is not a run directory, and there is no run")
    assert "It has bad, fine." in ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_run_that_this_user_may_not_see_is_not_said_to_be_none() -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from hpctrain.cli.stored_runs import find_run\n"
        "os.setgroups([])\nos.setresgid(12345, 12345, 12345)\nos.setresuid(12345, 12345, 12345)\n"
        "find_run(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    # Below pytest's own directory, which is its user's, others read nothing.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        run = Path(folder) / "runs" / "run"
        run.mkdir(parents=True, mode=0o700)
        for words in ((str(run), "elsewhere"), ("run", str(run.parent))):
            argv = [sys.executable, "-c", code, *words]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            assert f"{run} may be a run, but user 12345 may not look into it" in done.stderr
            assert "it belongs to root (user 0), and has mode 0700. Its owner can" in done.stderr
            assert "chmod -R g+rX" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(
    "verb", [["list"], ["top", "--once", "--storage"], ["sync", "--all", "--storage"]]
)
def test_a_run_that_this_user_may_not_see_is_named_where_runs_are_listed(verb: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        for name, mode in (("shut", 0o700), ("open", 0o755)):
            run = Path(folder) / "runs" / name
            run.mkdir(parents=True, mode=mode)
            (run / "plan.json").write_text("{}")
        words = [*verb, f"{folder}/runs"]
        argv = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *HPCTRAIN, *words]
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert f"warning: {folder}/runs/shut may be a run, but user 12345 may not" in done.stderr
        assert "belongs to root (user 0), and has mode 0700." in done.stderr
        assert "open" in done.stdout


def test_of_a_job_that_waits_the_time_is_that_of_its_submission() -> None:
    begun = time.time() - 9 * 86400
    status = RunStatus(
        name="r", state=RunState.SUBMITTED, launcher="slurm", job_id="7", started_at=begun
    )
    view = RunView(name="r", path=Path("/runs/r"), state="submitted", live=True, status=status)
    assert "\n  submitted   9 days ago" in render_view(view)
    assert "started" not in render_view(view)
    assert view.to_json()["started_at"] is None
    running = replace(view, status=status.with_changes(state=RunState.RUNNING, attempt=1))
    assert "\n  started     9 days ago" in render_view(running)
    assert running.to_json()["started_at"] == begun


def test_a_run_that_was_copied_has_the_name_of_its_directory(done: Any, tmp_path: Path) -> None:
    for name in ("fine", "copy"):
        shutil.copytree(done.run_dir("fine"), tmp_path / "hpctrain_runs" / name)
    shown = done("status", str(tmp_path / "hpctrain_runs" / "copy")).stdout
    assert shown.startswith("copy: finished\n")
    assert "\n  recorded    as fine: its directory has been copied or moved\n" in shown
    listed = done("list", str(tmp_path / "hpctrain_runs")).stdout.splitlines()
    assert sorted(line.split("  ")[0] for line in listed[1:]) == ["copy (of fine)", "fine"]
    found = json.loads(done("list", "--json", str(tmp_path / "hpctrain_runs")).stdout)
    names = {run["name"]: run["recorded_name"] for run in found}
    assert names == {"copy": "fine", "fine": None}
    assert done("top", "--once", str(tmp_path / "hpctrain_runs" / "copy")).stdout.startswith(
        "copy:"
    )


def test_a_run_whose_executor_was_killed_is_lost_not_running(workplace: Any) -> None:
    run = workplace.start_run()
    view = workplace.status()
    assert view["live"] is True
    assert view["next"] == f"hpctrain attach {workplace.run_dir()}"
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=120)
    view = workplace.status()
    assert (view["state"], view["live"]) == ("lost", False)
    assert view["next"].endswith("begins it again")
    assert "executor    gone: process" in workplace("status", "tiny").stdout


def test_status_does_not_load_what_it_does_not_need(done: Any) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.argv = ['hpctrain', 'status', 'fine']\n"
        "from hpctrain.cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'torch', 'mpi4py', 'submitit', 'cloudpickle', 'hpctrain.config',\n"
        "         'hpctrain.launch', 'hpctrain.plan', 'hpctrain.result'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=done.path,
        env=done.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_a_link_to_a_run_is_no_copy_of_it(done: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(done.run_dir("fine"))
    assert "copied or moved" not in done("status", str(tmp_path / "link")).stdout
