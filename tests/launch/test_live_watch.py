"""Runs are looked at again and again, and Slurm is asked seldom."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.run_view import view_runs
from hpctrain.cli.status import render_view
from hpctrain.errors import LaunchError
from hpctrain.execute.process import process_start_time
from hpctrain.launch import live_watch
from hpctrain.launch.live_watch import JobBoard, LiveWatch, RunsWatch
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status

STATUS = RunStatus(name="run", state=RunState.RUNNING, launcher="local")


class Slurm:
    """A ``squeue`` that prints what a test has written, and counts how often it is asked."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked, self._jobs = directory / "asked", directory / "jobs"
        self._jobs.write_text("")
        program = directory / "squeue"
        program.write_text(f'#!/bin/sh\necho "$*" >> {self._asked}\nexec cat {self._jobs}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    def say(self, *jobs: str) -> None:
        """Let it print jobs from now on."""
        self._jobs.write_text("".join(f"{job}\n" for job in jobs))

    @property
    def questions(self) -> list[str]:
        """What it was asked."""
        return self._asked.read_text().splitlines() if self._asked.exists() else []

    def break_down(self) -> None:
        """Let it answer no more."""
        self._jobs.unlink()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (tmp_path / "bin").mkdir()
    return Slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def board(now: list[float]) -> JobBoard:
    return JobBoard(lambda: now[0])


def make_run(root: Path, **changes: Any) -> RunPaths:
    paths = RunPaths(root)
    root.mkdir()
    paths.plan.write_text("{}")
    write_status(paths, replace(STATUS, name=root.name, **changes))
    return paths


def in_queue(job_id: str) -> dict[str, Any]:
    return {"state": RunState.SUBMITTED, "launcher": "slurm", "job_id": job_id}


def at_work() -> dict[str, Any]:
    """Return what says that this very process is the executor."""
    pid = os.getpid()
    start = process_start_time(pid)
    return {"owner_host": socket.gethostname(), "owner_pid": pid, "owner_start": start}


def test_one_question_is_for_all_runs_and_two_are_asked_in_the_first_minute(
    slurm: Slurm, now: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.say("1|PENDING|Priority", "2|RUNNING|None", "3|FAILED|NonZeroExitCode")
    runs = [make_run(tmp_path / f"r{n}", **in_queue(str(n))) for n in range(1, 41)]
    watch = RunsWatch(lambda: runs)
    watch._board = JobBoard(lambda: now[0])
    views = {view.name: view for view in watch.look()}
    assert len(slurm.questions) == 1
    assert views["r1"].waits.startswith("waits (Priority): ")
    assert (views["r1"].live, views["r2"].live, views["r3"].live) == (True, True, False)
    assert (views["r3"].state, views["r40"].state) == ("lost", "lost")
    for _ in range(600):
        now[0] += 2.0
        watch.look()
    # Twenty minutes.
    assert len(slurm.questions) <= 22
    assert "--user=" in slurm.questions[0]


@pytest.mark.parametrize("launcher", ["slurm", "allocation"])
def test_a_run_whose_job_is_queued_again_does_not_run(
    slurm: Slurm, board: JobBoard, tmp_path: Path, launcher: str
) -> None:
    """Its executor was ended before it could write so."""
    slurm.say("7|PENDING|BeginTime")
    paths = make_run(
        tmp_path / "r",
        state=RunState.RUNNING,
        launcher=launcher,
        job_id="7",
        owner_host="elsewhere",
        phase="train",
        attempt=1,
    )
    seen = LiveWatch(paths, board).look()
    (listed,) = view_runs([paths])
    for view in (seen, listed):
        assert (view.state, view.live, view.status.phase) == ("submitted", True, "")
    assert seen.waits.startswith("waits (BeginTime): ")
    assert not seen.is_at_work
    assert "\n  queue       waits (BeginTime): " in render_view(listed, seen)


def test_a_job_that_was_submitted_since_is_not_taken_for_gone(
    slurm: Slurm, board: JobBoard, now: list[float]
) -> None:
    slurm.say("1|PENDING|None")
    assert board.find("1", 0) is not None
    slurm.say("1|PENDING|None", "2|PENDING|None")
    # The second question of the first minute.
    assert board.find("2", 0) is not None
    with pytest.raises(LaunchError, match="a moment ago"):
        board.find("3", 0)
    now[0] += 120
    assert board.find("3", 0) is None


def test_a_controller_that_does_not_answer_leaves_it_open(
    slurm: Slurm, board: JobBoard, tmp_path: Path
) -> None:
    slurm.break_down()
    watch = LiveWatch(make_run(tmp_path / "r", **in_queue("7")), board)
    for _ in range(5):
        view = watch.look()
    assert (view.state, view.live, view.waits) == ("submitted", None, "")
    assert len(slurm.questions) <= 2


def test_a_run_whose_status_changes_is_at_work_and_slurm_is_not_asked(
    slurm: Slurm, board: JobBoard, tmp_path: Path
) -> None:
    paths = make_run(tmp_path / "r", launcher="slurm", job_id="7", owner_host="elsewhere")
    slurm.say("7|RUNNING|None")
    watch = LiveWatch(paths, board)
    assert watch.look().live is True
    slurm.say()
    for reports in range(5):
        write_status(paths, replace(STATUS, launcher="slurm", job_id="7", reports=reports))
        assert watch.look().live is True
    assert len(slurm.questions) == 1


def test_a_run_of_this_host_is_lost_with_its_process(board: JobBoard, tmp_path: Path) -> None:
    paths = make_run(tmp_path / "r", **at_work())
    watch = LiveWatch(paths, board)
    assert (watch.look().state, watch.look().live) == ("running", True)
    write_status(paths, replace(STATUS, **{**at_work(), "owner_start": 1}))
    gone = LiveWatch(paths, board).look()
    assert (gone.state, gone.live, gone.is_over) == ("lost", False, True)


def test_a_run_of_another_host_is_not_known_before_its_status_changes(
    board: JobBoard, tmp_path: Path
) -> None:
    paths = make_run(tmp_path / "r", owner_host="elsewhere", owner_pid=1)
    watch = LiveWatch(paths, board)
    assert watch.look().live is None
    write_status(paths, replace(STATUS, owner_host="elsewhere", owner_pid=1, reports=1))
    assert watch.look().live is True


def test_the_end_of_a_run_and_its_resumption_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / name, **at_work()) for name in ("b", "a")]
    watch = RunsWatch(lambda: runs)
    assert [view.name for view in watch.look()] == ["b", "a"]
    write_status(runs[0], replace(STATUS, name="b", state=RunState.FAILED, error="why"))
    assert [(view.name, view.state) for view in watch.look()] == [("a", "running"), ("b", "failed")]
    write_status(runs[0], replace(STATUS, name="b", **at_work()))
    assert watch.look()[1].state == "failed", "not looked at for a while"
    monkeypatch.setattr(live_watch, "_FIND_INTERVAL_S", 0.0)
    assert {view.state for view in watch.look()} == {"running"}


def test_a_directory_that_is_gone_or_has_no_status_is_shown(
    board: JobBoard, tmp_path: Path
) -> None:
    paths = make_run(tmp_path / "r", **at_work())
    watch = LiveWatch(paths, board)
    assert watch.look().state == "running"
    paths.status.unlink()
    paths.plan.unlink()
    paths.root.rmdir()
    assert watch.look().state in ("prepared", "running")
    assert LiveWatch(paths, board).look().state == "prepared"
