from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def ranks_of(workplace: Any) -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_text().replace("\0", " "))
    return [command for command in commands if str(workplace.run_dir()) in command]


def test_a_running_run_stops_at_a_report_and_the_same_command_resumes_it(workplace: Any) -> None:
    run = workplace.start_run()
    asked = workplace("cancel", "tiny")
    assert asked.returncode == 0
    assert asked.stderr.startswith("hpctrain: asked tiny to stop at its next report.")
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 5, output
    view = workplace.status()
    assert view["state"] == "stopped"
    assert view["error"].startswith("the run stopped because it was asked to (hpctrain cancel)")
    assert workplace("wait", "tiny").returncode == 5
    assert workplace("run", "train.py", "--steps", "2").returncode == 0
    assert workplace.status()["state"] == "finished"


def test_now_ends_the_executor_and_its_ranks_and_says_so_in_the_run(workplace: Any) -> None:
    run = workplace.start_run()
    assert ranks_of(workplace)
    ended = workplace("cancel", "tiny", "--now")
    assert ended.returncode == 0, ended.stderr
    run.communicate(timeout=120)
    view = workplace.status()
    assert view["state"] == "stopped"
    assert "hpctrain cancel --now" in view["error"]
    workplace.wait_until(lambda: not ranks_of(workplace), "the end of the ranks", started=False)
    assert workplace("wait", "tiny").returncode == 5


def test_a_dry_run_says_what_would_be_done_and_does_nothing(workplace: Any) -> None:
    run = workplace.start_run()
    asking = workplace("cancel", "tiny", "--dry-run")
    assert asking.stdout == f"would ask tiny to stop: {workplace.run_dir()}/stop\n"
    ending = workplace("cancel", "tiny", "--now", "--dry-run")
    assert ending.stdout.startswith(f"would send SIGTERM to process {run.pid} on ")
    assert not (workplace.run_dir() / "stop").exists()
    assert run.poll() is None


def test_a_run_that_is_over_is_left_alone(done: Any) -> None:
    before = json.dumps(done.status("fine"))
    ended = done("cancel", "fine", "--now")
    assert ended.returncode == 0
    assert ended.stderr == "hpctrain: fine is finished; there is nothing to cancel.\n"
    assert json.dumps(done.status("fine")) == before
