from __future__ import annotations

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute import time_limit as module
from hpctrain.execute.failure_policy import StopKind
from hpctrain.execute.time_limit import TimeLimit
from hpctrain.slurm.output import Job


class Slurm:
    """A clock, and a controller that says when the job ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end: float | None) -> None:
        self.now, self.end, self.asked, self.is_away = 1000.0, end, 0, False
        monkeypatch.setattr(module.time, "time", lambda: self.now)
        monkeypatch.setattr(module, "read_own_job", self.read)
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)

    def read(self, *, patience_s: float) -> Job:
        self.asked += 1
        if self.is_away:
            raise LaunchError("the controller is away", transient=True)
        return Job(job_id="7", state="RUNNING", end_time=self.end)


def begun(notice_s: float) -> TimeLimit:
    limit = TimeLimit(notice_s=notice_s)
    limit.begin()
    return limit


def test_a_run_is_told_once_before_its_job_ends(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now = 1899.0
    assert limit.step() is None
    slurm.now = 1900.0
    notice = limit.step()
    assert notice is not None
    assert (notice.kind, notice.deadline) == (StopKind.TIME_LIMIT, 2000.0)
    assert notice.why == "the time limit of job 7 ends"
    assert limit.step() is None
    assert slurm.asked == 2


def test_of_a_short_job_a_quarter_is_kept(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=1040.0)
    limit = begun(notice_s=120)
    assert limit.step() is None
    slurm.now = 1030.0
    assert limit.step() is not None


def test_a_limit_that_was_moved_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now, slurm.end = 1950.0, 3000.0
    assert limit.step() is None
    slurm.now = 2899.0
    assert limit.step() is None
    slurm.now = 2900.0
    assert limit.step() is not None


def test_what_the_environment_says_is_asked_about_at_the_end_only(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "2000")
    limit = begun(notice_s=100)
    assert limit.step() is None
    assert slurm.asked == 0
    slurm.now, slurm.is_away = 1900.0, True
    notice = limit.step()
    assert notice is not None
    assert notice.deadline == 2000.0


def test_a_job_without_an_end_has_none(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=None)
    limit = begun(notice_s=100)
    slurm.now = 1e12
    assert limit.step() is None


def test_a_controller_that_is_away_at_the_beginning_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slurm = Slurm(monkeypatch, end=2000.0)
    slurm.is_away = True
    limit = begun(notice_s=100)
    assert limit.step() is None
    assert "when the time limit of this job ends is not known" in capsys.readouterr().err
