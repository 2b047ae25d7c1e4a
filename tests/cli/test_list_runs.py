from __future__ import annotations

import json
from typing import Any


def test_runs_are_listed_the_newest_first(done: Any) -> None:
    lines = done("list").stdout.splitlines()
    assert lines[0].split() == [
        *("RUN", "STATE", "JOB", "ATTEMPT", "RANKS"),
        *("REPORTS", "CHECKPOINT", "STARTED", "METRICS"),
    ]
    assert [line.split()[:2] for line in lines[1:]] == [["bad", "failed"], ["fine", "finished"]]


def test_json_is_a_list_of_what_status_says(done: Any) -> None:
    listed = json.loads(done("list", "hpctrain_runs", "--json").stdout)
    assert listed == [done.status("bad"), done.status("fine")]


def test_a_directory_that_is_not_there_is_a_usage_error(done: Any) -> None:
    ended = done("list", "elsewhere")
    assert ended.returncode == 2
    assert "elsewhere is not a directory" in ended.stderr
