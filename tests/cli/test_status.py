from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest


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
    assert "ValueError: the loss is gone" in text


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
        "from hpctrain.cli.run_view import find_run\n"
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
            assert "chmod -R g+rX" in done.stderr


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
