from __future__ import annotations

import json
from typing import Any


def test_a_finished_run_is_0_and_a_failed_run_is_4(done: Any) -> None:
    finished = done("wait", "fine", "--json")
    assert finished.returncode == 0
    (listed,) = [run for run in json.loads(done("list", "--json").stdout) if run["name"] == "fine"]
    assert json.loads(finished.stdout) == {**listed, "exit_code": 0}
    failed = done("wait", "bad")
    assert failed.returncode == 4
    assert failed.stdout == ""
    assert "hpctrain: rank 1 of 2" in failed.stderr


def test_a_run_that_goes_on_after_the_timeout_is_124(workplace: Any) -> None:
    workplace.start_run()
    ended = workplace("wait", "tiny", "--timeout", "0.3", "--json")
    assert ended.returncode == 124
    assert json.loads(ended.stdout)["exit_code"] == 124
    assert ended.stderr == "hpctrain: tiny is not over after 0.3 s.\n"


def test_a_run_that_is_waited_for_ends_the_waiting(workplace: Any) -> None:
    run = workplace.start_run()
    waiting = workplace.start("wait", "tiny")
    workplace("cancel", "tiny")
    assert waiting.communicate(timeout=120)[0].startswith("hpctrain: the run stopped because")
    assert waiting.returncode == 5
    run.communicate(timeout=120)
