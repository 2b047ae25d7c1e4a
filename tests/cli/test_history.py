from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.history import history, render_history, to_json
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status

BEGAN = 1_700_000_000.0
NODES = [f"node{n}" for n in range(1, 501)]


def started(attempt: int, at: float, job_id: str, checkpoint: str | None, first: int) -> Any:
    return {
        "event": "attempt-started",
        "time": BEGAN + at,
        "attempt": attempt,
        "job_id": job_id,
        "resumed_from": None if checkpoint is None else f"/runs/r/checkpoints/{checkpoint}",
        "first_report": first,
    }


def ended(attempt: int, at: float, what: str | None, reports: int, checkpoint: str) -> Any:
    return {
        "event": "attempt-ended",
        "time": BEGAN + at,
        "attempt": attempt,
        "cause": what or "finished",
        "what": what,
        "reports": reports,
        "checkpoint": checkpoint,
        "nodes": NODES,
    }


KILLED = "rank 1 on node7 was killed (SIGKILL)"
EVENTS = [
    {"event": "fit", "time": BEGAN, "continues": False},
    {"event": "submitted", "time": BEGAN + 1, "job_id": "17"},
    started(1, 60, "17", None, 0),
    ended(1, 3660, KILLED, 7, "000006"),
    {
        "event": "restart",
        "time": BEGAN + 3660,
        "what": KILLED,
        "number": 1,
        "budget": 2,
        "checkpoint": "000006",
    },
    started(2, 3670, "17", "000006", 6),
    {"event": "hang-suspected", "time": BEGAN + 5000, "what": "all 4000 ranks hang"},
    ended(2, 90000, "the run stopped because the time limit of job 17 ends", 20, "000020"),
    {
        "event": "successor",
        "time": BEGAN + 90001,
        "job_id": "18",
        "after": "17",
        "why": "the time limit of job 17 ends",
        "checkpoint": "000020",
    },
    started(3, 90100, "18", "000020", 20),
]
STATUS = RunStatus(
    name="r",
    state=RunState.RUNNING,
    launcher="slurm",
    attempt=3,
    nodes=("node1", "node2"),
    reports=25,
    checkpoint="000024",
    updated_at=BEGAN + 90200,
)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_chained_run_that_goes_on_at_80_columns(utc: None) -> None:
    said = render_history("r", EVENTS, STATUS, now=BEGAN + 90202, width=80)
    assert said == (
        "r: running, 3 attempts, 2 restarts, 2 jobs (written 0:02 ago)\n"
        "    22:13:20  fit() was called\n"
        "    22:13:21  job 17 was submitted\n"
        "\n"
        "  attempt 1: 2023-11-14 22:14:20 to 23:14:20 (1:00:00), job 17\n"
        "    nodes     node[1-500]\n"
        "    from      the beginning\n"
        "    to        report 7, checkpoint 000006\n"
        "    ended     rank 1 on node7 was killed (SIGKILL)\n"
        "    23:14:20  rank 1 on node7 was killed (SIGKILL); restart 1 of 2 from\n"
        "              checkpoint 000006\n"
        "\n"
        "  attempt 2: 2023-11-14 23:14:30 to 2023-11-15 23:13:20 (23:58:50), job 17\n"
        "    nodes     node[1-500]\n"
        "    from      checkpoint 000006\n"
        "    to        report 20, checkpoint 000020\n"
        "    ended     the run stopped because the time limit of job 17 ends\n"
        "    23:36:40  all 4000 ranks hang\n"
        "    23:13:21  the time limit of job 17 ends; job 18 resumes from checkpoint\n"
        "              000020\n"
        "\n"
        "  attempt 3: since 2023-11-15 23:15:00 (1:40 so far), job 18\n"
        "    nodes     node[1-2]\n"
        "    from      checkpoint 000020\n"
        "    to        report 25, checkpoint 000024"
    )
    assert max(map(len, said.splitlines())) <= 80


def write(tmp_path: Path, content: bytes) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.ledger.write_bytes(content)
    return paths


@pytest.mark.parametrize("cut", range(0, 2000, 97))
def test_a_ledger_that_was_cut_or_damaged_anywhere_is_shown(tmp_path: Path, cut: int) -> None:
    content = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
    for damaged in (content[:cut], content[:cut] + b"\xff\0\n3\nnull\n[]\n{}\n" + content[cut:]):
        events = read_events(write(tmp_path, damaged))
        said = render_history("r", events, None, now=BEGAN, width=80)
        assert said.startswith("r: prepared, ")
        json.dumps(to_json(RunPaths(tmp_path), events, None))


@pytest.mark.parametrize("missing", ["attempt", "time", "resumed_from", "nodes", "what", "job_id"])
def test_fields_that_are_missing_stay_empty(tmp_path: Path, missing: str) -> None:
    lines = [{k: v for k, v in event.items() if k != missing} for event in EVENTS]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    events = read_events(write(tmp_path, content))
    assert render_history("r", events, STATUS, now=BEGAN, width=80).startswith("r: running, ")
    json.dumps(to_json(RunPaths(tmp_path), events, STATUS))


def test_the_end_of_an_attempt_whose_beginning_is_lost_is_shown(utc: None) -> None:
    said = render_history("r", EVENTS[3:5], None, now=BEGAN, width=80)
    assert "  attempt 1: until 2023-11-14 23:14:20\n" in said
    assert "ended     rank 1 on node7 was killed (SIGKILL)" in said


def test_a_failed_run_says_why_without_slurm(done: Any) -> None:
    said = done("history", "bad")
    assert said.returncode == 0, said.stderr
    assert "ended     rank 1 on " in said.stdout
    assert "raised ValueError: the loss is gone" in said.stdout
    content = json.loads(done("history", "bad", "--json").stdout)
    assert (content["state"], content["num_restarts"]) == ("failed", 0)
    (attempt,) = content["attempts"]
    assert attempt["cause"].endswith("raised ValueError: the loss is gone")
    assert attempt["kind"] == "worker"


def test_a_run_whose_status_is_damaged_still_has_a_history(done: Any, tmp_path: Path) -> None:
    shutil.copytree(done.run_dir("fine"), tmp_path / "fine")
    (tmp_path / "fine/status.json").write_text('{"name": "fi')
    said = done("history", str(tmp_path / "fine"))
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("fine: finished, 1 attempt, 0 restarts\n")


def test_an_attempt_without_an_end_says_what_is_known_of_it(utc: None) -> None:
    def last(*events: Any, ago: float = 0.0, **status: Any) -> str:
        now = BEGAN + 90200 + ago
        shown = render_history("r", events, STATUS.with_changes(**status), now=now, width=300)
        return shown.partition("    ended     ")[2].partition("\n")[0]

    first, second = started(1, 60, "17", None, 0), started(3, 90100, "18", "000020", 20)
    assert last(first, second) == (
        "unknown: its executor was killed before it could write why, or could not"
    )
    assert last(second, ago=5) == "", "it runs"
    assert last(second, ago=125) == (
        "none is recorded, and nothing was written for 2:05: if its executor was killed, hpctrain "
        "status says so"
    )
    assert last(second, state=RunState.FAILED).startswith("unknown: its executor was killed")
    assert last(second, ended(3, 90150, "rank 1 failed", 20, "000020")) == "rank 1 failed"


def test_a_run_that_starts_again_while_it_is_read_has_no_damaged_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.root.mkdir()
    write_status(paths, STATUS.with_changes(attempt=2))
    for event in EVENTS[:-1]:
        append_event(paths, event)

    def read(paths: RunPaths) -> Any:
        events = read_events(paths)
        append_event(paths, EVENTS[-1])
        write_status(paths, STATUS)
        return events

    monkeypatch.setattr("hpctrain.rundir.ledger.read_events", read)
    history(paths.root)
    assert "damaged" not in capsys.readouterr().err


def append_event(paths: RunPaths, event: Any) -> None:
    with open(paths.ledger, "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
