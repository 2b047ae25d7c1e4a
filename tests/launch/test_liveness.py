"""What a follower asks Slurm, and when, with a clock of the test's own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.launch import liveness as liveness_module
from hpctrain.launch.liveness import Liveness
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.slurm.output import Job


@dataclass
class Slurm:
    """A clock, and a controller that knows one job."""

    now: float = 1000.0
    job: Job | None = field(default_factory=lambda: Job(job_id="7", state="PENDING"))
    asked_at: list[float] = field(default_factory=list)

    def find_job(self, job_id: str) -> Job | None:
        assert job_id == "7"
        self.asked_at.append(self.now - 1000.0)
        return self.job


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(liveness_module, "find_job", slurm.find_job)
    clock = SimpleNamespace(monotonic=lambda: slurm.now, time=time.time)
    monkeypatch.setattr(liveness_module, "time", clock)
    return slurm


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.submission.mkdir()
    return paths


def write(paths: RunPaths, state: RunState) -> RunStatus:
    return write_status(
        paths, RunStatus(name="r", state=state, launcher="slurm", job_id="7", attempt=0)
    )


def follow(
    slurm: Slurm, liveness: Liveness, status: RunStatus, *, until_s: float, step_s: float = 0.5
) -> None:
    while slurm.now - 1000.0 < until_s:
        liveness.check(status)
        slurm.now += step_s


def test_a_job_that_waits_is_asked_about_twice_in_the_first_minute_and_then_once_a_minute(
    slurm: Slurm, paths: RunPaths
):
    follow(slurm, Liveness(paths), write(paths, RunState.SUBMITTED), until_s=600)
    assert sum(at < 60 for at in slurm.asked_at) == 2
    assert slurm.asked_at[0] == 5
    assert len(slurm.asked_at) <= 11
    assert max(b - a for a, b in zip(slurm.asked_at, slurm.asked_at[1:], strict=False)) <= 61


def test_an_executor_that_shows_life_is_never_asked_about(slurm: Slurm, paths: RunPaths):
    liveness = Liveness(paths)
    for minute in range(10):
        for second in range(0, 60, 10):
            status = write(paths, RunState.RUNNING)
            follow(slurm, liveness, status, until_s=60 * minute + second + 10)
    assert slurm.asked_at == []


def test_an_executor_that_falls_silent_is_asked_about_at_once_and_then_once_a_minute(
    slurm: Slurm, paths: RunPaths
):
    slurm.job = Job(job_id="7", state="PENDING", reason="BeginTime")
    liveness = Liveness(paths)
    follow(slurm, liveness, write(paths, RunState.RUNNING), until_s=600)
    assert slurm.asked_at[0] == 15
    assert len(slurm.asked_at) <= 11
    assert liveness.waits.startswith("waits (BeginTime)")
    liveness.check(write(paths, RunState.RUNNING))
    assert liveness.waits == ""


def test_a_run_that_died_long_ago_is_found_at_the_first_look(slurm: Slurm, paths: RunPaths):
    status = write(paths, RunState.RUNNING).with_changes(updated_at=time.time() - 3600)
    slurm.job = None
    with pytest.raises(RunStoppedError, match="job 7, which ran r, is gone"):
        Liveness(paths).check(status)


def test_a_job_that_begins_and_says_no_more_is_asked_about_soon(slurm: Slurm, paths: RunPaths):
    liveness, status = Liveness(paths), write(paths, RunState.SUBMITTED)
    follow(slurm, liveness, status, until_s=100)
    before = len(slurm.asked_at)
    (paths.submission / "7_0_log.out").write_text("module: command not found\n")
    slurm.job = Job(job_id="7", state="FAILED", reason="NonZeroExitCode", exit_code="127:0")
    with pytest.raises(LaunchError, match=r"job 7 ended .*\smodule: command not found"):
        follow(slurm, liveness, status, until_s=130)
    assert slurm.asked_at[before] < 130


def test_clues_do_not_make_more_questions_than_there_may_be(slurm: Slurm, paths: RunPaths):
    liveness, log = Liveness(paths), paths.submission / "7_0_log.out"
    status = write(paths, RunState.SUBMITTED)
    for second in range(0, 600, 5):
        with log.open("a") as file:
            file.write("still at it\n")
        follow(slurm, liveness, status, until_s=second)
    assert sum(at < 60 for at in slurm.asked_at) == 2
    assert len(slurm.asked_at) <= 11
