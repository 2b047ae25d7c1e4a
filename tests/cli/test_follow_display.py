from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.launch import follow
from hpctrain.launch.follow import Follower
from hpctrain.launch.tail import Tail
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenTerminal(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.logs(1).mkdir(parents=True)
    write_status(paths, make_status())
    return paths


def make_status(**changes: Any) -> RunStatus:
    status = RunStatus(
        name="r", state=RunState.RUNNING, launcher="local", attempt=1, world_size=2, nodes=("n1",)
    )
    return status.with_changes(**changes)


def add_report(paths: RunPaths, number: int, at: float = 0.0) -> None:
    report = {
        "report": number,
        "attempt": 1,
        "time": at,
        "checkpoint": None,
        "metrics": {"loss": 0.5},
    }
    with open(paths.metrics, "a") as file:
        file.write(json.dumps(report) + "\n")


def test_a_file_gets_plain_lines_and_the_last_word_last(paths: RunPaths) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out)
    paths.rank_log(1, 0).write_text("hello\nno newline")
    add_report(paths, 1)
    follower.step()
    add_report(paths, 2)
    follower.step()
    write_status(paths, make_status(state=RunState.FINISHED))
    follower.step(final=True)
    assert out.getvalue().splitlines() == [
        "hpctrain: r running attempt 1: 2 ranks on n1",
        "hello",
        "report 1  loss=0.5",
        "no newline",
        "report 2  loss=0.5",
        "hpctrain: r finished",
    ]


def test_an_attempt_that_has_ended_since_its_status_was_read_is_shown_before_its_end(
    paths: RunPaths,
) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out, from_start=True)
    events = [{"event": "fit"}]
    for number in (1, 2):
        events.append({"event": "attempt-ended", "attempt": number})
        events.append({"event": "restart", "what": f"death {number}", "number": number})
    lines = [json.dumps({"time": 0.0, **event}) for event in events]
    write_status(paths, make_status(attempt=2))
    paths.ledger.write_text("".join(f"{line}\n" for line in lines))
    follower.step()
    assert out.getvalue().splitlines() == [
        f"hpctrain: {paths.root.name}: death 1; restart 1 from the beginning",
        "hpctrain: r running attempt 2: 2 ranks on n1",
        f"hpctrain: {paths.root.name}: death 2; restart 2 from the beginning",
    ]


def test_what_the_ranks_of_a_failed_attempt_said_last_is_still_shown(paths: RunPaths) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out)
    follower.step()
    paths.rank_log(1, 0).write_text("last words\n")
    write_status(paths, make_status(attempt=2, state=RunState.STARTING))
    follower.step()
    assert "last words" in out.getvalue()


def test_a_progress_bar_is_shown_once_when_its_line_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    path.write_bytes(b"a\n 1%\r 2%\r")
    assert tail.read() == ["a"]
    with open(path, "ab") as file:
        file.write(b" 3%\r100%\nwindows\r\n")
    assert tail.read() == ["100%", "windows"]


def test_of_a_long_log_only_the_end_is_read_from_a_whole_line_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert Tail(path, last_bytes=20).read() == ["line 998", "line 999"]


def test_a_terminal_gets_a_status_line_with_rate_and_metrics(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_STATUS_LINE_AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    follower = Follower(paths, out=out)
    add_report(paths, 1, at=10.0)
    follower.step()
    add_report(paths, 5, at=12.0)
    paths.rank_log(1, 0).write_text("hello [bold]you[/bold]\n")
    follower.step()
    shown = out.getvalue()
    assert "r  running  report 5  loss=0.5  2 reports/s" in shown
    assert "hello [bold]you[/bold]" in shown
    write_status(paths, make_status(state=RunState.FINISHED))
    follower.step(final=True)
    assert out.getvalue().splitlines()[-2:][-1].endswith("hpctrain: r finished")


def test_the_status_line_says_how_long_it_has_been_and_that_it_stops(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_STATUS_LINE_AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    began = time.time() - 3725
    write_status(paths, make_status(started_at=began, phase="training"))
    out = Terminal()
    follower = Follower(paths, out=out)
    follower.step()
    assert "r  running  1:02:05  training" in out.getvalue()
    write_status(paths, make_status(started_at=began, phase="stopping: it was asked to"))
    follower.step()
    assert "r  stopping  1:02:0" in out.getvalue()
    assert "stopping: it was asked to" in out.getvalue()
    follower.close()


def test_a_run_that_ends_soon_never_loads_rich(paths: RunPaths) -> None:
    out = Terminal()
    follower = Follower(paths, out=out)
    follower.step()
    follower.step(final=True)
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("after_s", [0.0, 1000.0])
def test_a_display_that_fails_ends_no_run(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    monkeypatch.setattr(follow, "_STATUS_LINE_AFTER_S", after_s)
    follower = Follower(paths, out=BrokenTerminal())
    with follower.in_background():
        add_report(paths, 1)
    status = follower.step(final=True)
    assert status is not None


def test_a_torn_line_of_metrics_ends_neither_run_nor_display(paths: RunPaths) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out)
    paths.metrics.write_text("{not json\n")
    assert follower.step() is not None
    add_report(paths, 1)
    follower.step(final=True)
    assert "report 1" in out.getvalue()


def test_the_follower_of_a_run_here_costs_nothing_at_its_end(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_LOCAL_INTERVAL_S", 600.0)
    with Follower(paths, out=io.StringIO()).in_background():
        threads = [t for t in threading.enumerate() if t.name == "hpctrain-follower"]
    # It does not sleep on until its next look; one that does not end is left after some seconds.
    assert [thread.is_alive() for thread in threads] == [False]


def test_a_checkpoint_is_shown_once_it_is_complete_and_never_an_older_one(paths: RunPaths) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out)
    follower.step()

    def show(number: int, saved: str | None, *, of_status: str | None) -> str:
        write_status(paths, make_status(checkpoint=of_status))
        report = {"report": number, "attempt": 1, "time": 0.0, "checkpoint": saved, "metrics": {}}
        with open(paths.metrics, "a") as file:
            file.write(json.dumps(report) + "\n")
        follower._shown_at = 0.0
        follower.step()
        return out.getvalue().splitlines()[-1]

    assert show(1, "000001", of_status=None) == "report 1", "it is not committed yet"
    (paths.checkpoints / "000002").mkdir(parents=True)
    assert show(2, "000002", of_status=None) == "report 2  checkpoint 000002"
    assert show(3, None, of_status="000001") == "report 3", "the status is behind"
    assert show(4, "000004", of_status="000002") == "report 4"
    # It may be deleted by then.
    assert show(5, None, of_status="000004") == "report 5  checkpoint 000004"
    assert show(6, "best", of_status="best") == "report 6  checkpoint best"
    write_status(paths, make_status(state=RunState.FINISHED, checkpoint="000007"))
    follower.step(final=True)
    assert out.getvalue().splitlines()[-2:] == ["checkpoint 000007", "hpctrain: r finished"]


@pytest.mark.parametrize("of_another_process", [True, False])
def test_a_slow_node_is_shown_by_who_follows_another_process(
    paths: RunPaths, of_another_process: bool
) -> None:
    out = io.StringIO()
    follower = Follower(paths, out=out, from_start=of_another_process)
    events: list[dict[str, Any]] = [
        {"event": "node-slow", "factor": 2.5, "since_step": 9, "reason": "its CPUs are busy"},
        {"event": "node-slow-over", "step": 40},
    ]
    with open(paths.ledger, "a") as ledger:
        for event in events:
            ledger.write(json.dumps({"time": 1.0, "attempt": 1, "node": "n1", **event}) + "\n")
    follower.step()
    said = [line for line in out.getvalue().splitlines() if "slow" in line]
    slow = "node n1 is slow since step 9: steps take 2.5 times as long: its CPUs are busy"
    expected = [slow, "node n1 is no longer slow, as of step 40"]
    # The executor of a run here has logged it.
    assert said == ([f"hpctrain: {paths.root.name}: {e}" for e in expected] * of_another_process)
