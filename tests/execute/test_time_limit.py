from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute import time_limit as module
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.time_limit import TimeLimit
from hpctrain.slurm.output import Job


class Slurm:
    """A clock, and a controller that says when the job ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end: float | None) -> None:
        self.now, self.end, self.asked, self.is_away = 1000.0, end, 0, False
        self.failures, self.is_unlimited = 0, end is None
        monkeypatch.setattr(module.time, "time", lambda: self.now)
        monkeypatch.setattr(module, "read_own_job", self.read)
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)

    def read(self, *, patience_s: float) -> Job:
        self.asked += 1
        if self.is_away or self.asked <= self.failures:
            raise LaunchError("the controller is away", transient=True)
        return Job(job_id="7", state="RUNNING", end_time=self.end, is_unlimited=self.is_unlimited)


def begun(notice_s: float) -> TimeLimit:
    limit = TimeLimit(notice_s=notice_s)
    limit.begin()
    answer()
    limit.step()
    return limit


def step(limit: TimeLimit) -> StopNotice | None:
    """Return what a step gives once Slurm has answered what it asks."""
    notice = limit.step()
    answer()
    return limit.step() if notice is None else notice


def answer() -> None:
    """Wait until Slurm has answered, or has not."""
    for thread in threading.enumerate():
        if thread.name == "hpctrain-time-limit":
            thread.join(30)
            assert not thread.is_alive()


def test_a_run_is_told_once_before_its_job_ends(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now = 1899.0
    assert step(limit) is None
    slurm.now = 1900.0
    notice = step(limit)
    assert notice is not None
    assert (notice.kind, notice.deadline) == (StopKind.TIME_LIMIT, 2000.0)
    assert notice.why == "the time limit of job 7 ends"
    assert step(limit) is None
    assert slurm.asked == 2


def test_of_a_short_job_a_quarter_is_kept(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=1040.0)
    limit = begun(notice_s=120)
    assert step(limit) is None
    slurm.now = 1030.0
    assert step(limit) is not None


def test_a_limit_that_was_moved_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now, slurm.end = 1950.0, 3000.0
    assert step(limit) is None
    slurm.now = 2899.0
    assert step(limit) is None
    slurm.now = 2900.0
    assert step(limit) is not None


def test_what_the_environment_says_is_asked_about_at_the_end_only(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "2000")
    limit = begun(notice_s=100)
    assert step(limit) is None
    assert slurm.asked == 0
    slurm.now, slurm.is_away = 1900.0, True
    notice = step(limit)
    assert notice is not None
    assert notice.deadline == 2000.0


def test_a_job_without_an_end_has_none(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=None)
    limit = begun(notice_s=100)
    slurm.now = 1e12
    assert step(limit) is None


def test_a_controller_that_is_away_at_the_beginning_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slurm = Slurm(monkeypatch, end=2000.0)
    slurm.is_away = True
    limit = begun(notice_s=100)
    assert step(limit) is None
    assert "when the time limit of this job ends is not known" in capsys.readouterr().err


def test_it_asks_again_less_and_less_often_until_there_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slurm = Slurm(monkeypatch, end=1e6)
    slurm.failures = 9
    limit = TimeLimit(notice_s=100, clock=lambda: slurm.now)
    limit.begin()
    asked_at = [slurm.now]
    while limit.end is None:
        answer()
        assert step(limit) is None
        before = slurm.asked
        slurm.now += 5
        assert step(limit) is None
        answer()
        if slurm.asked > before:
            asked_at.append(slurm.now)
        assert slurm.now < 1e4
    gaps = [later - earlier for earlier, later in pairwise(asked_at)]
    assert gaps == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    slurm.now = 5e5
    assert step(limit) is None
    answer()
    assert slurm.asked == 10
    slurm.now = 1e6 - 100
    notice = step(limit)
    assert notice is not None
    assert notice.deadline == 1e6
    assert capsys.readouterr().err.count("not known") == 1


def test_no_limit_is_an_answer(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=None)
    limit = TimeLimit(notice_s=100, clock=lambda: slurm.now)
    limit.begin()
    for _ in range(5):
        answer()
        assert step(limit) is None
        slurm.now += 1000
    assert slurm.asked == 1


def test_an_end_that_slurm_does_not_say_yet_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slurm = Slurm(monkeypatch, end=None)
    slurm.is_unlimited = False
    limit = TimeLimit(notice_s=100, clock=lambda: slurm.now)
    limit.begin()
    answer()
    assert step(limit) is None
    assert "is not known yet: Slurm does not say when job 7 ends." in capsys.readouterr().err
    slurm.end, slurm.now = 2000.0, slurm.now + 5
    assert step(limit) is None
    assert (limit.end, slurm.asked) == (2000.0, 2)


def test_an_end_that_slurm_does_not_say_any_more_does_not_pass_for_no_limit(
    monkeypatch: pytest.MonkeyPatch,
):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now, slurm.end = 1900.0, None
    notice = step(limit)
    assert notice is not None
    assert notice.deadline == 2000.0


def test_a_limit_that_was_lifted_is_none_any_more(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    slurm.now, slurm.end, slurm.is_unlimited = 1900.0, None, True
    assert step(limit) is None
    assert limit.end is None


def test_where_there_is_no_room_for_a_thread_it_is_asked_later(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = TimeLimit(notice_s=100, clock=lambda: slurm.now)
    with monkeypatch.context() as full:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", refuse)
        limit.begin()
    assert limit.step() is None
    slurm.now += 5
    assert step(limit) is None
    assert limit.end == 2000.0


def test_nobody_waits_for_a_controller_that_is_busy(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    answers = threading.Event()

    def read(*, patience_s: float) -> Job:
        assert answers.wait(30)
        return slurm.read(patience_s=patience_s)

    monkeypatch.setattr(module, "read_own_job", read)
    limit = TimeLimit(notice_s=100)
    limit.begin()
    assert limit.step() is None
    assert (limit.end, slurm.asked) == (None, 0)
    answers.set()
    answer()
    assert limit.step() is None
    assert (limit.end, slurm.asked) == (2000.0, 1)


def test_a_controller_that_is_busy_at_the_end_holds_up_nothing(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(monkeypatch, end=2000.0)
    limit = begun(notice_s=100)
    answers = threading.Event()

    def read(*, patience_s: float) -> Job:
        assert answers.wait(30)
        return slurm.read(patience_s=patience_s)

    monkeypatch.setattr(module, "read_own_job", read)
    slurm.now = 1900.0
    assert limit.step() is None
    slurm.now, slurm.is_away = 1915.0, True
    assert limit.step() is None
    answers.set()
    answer()
    notice = limit.step()
    assert notice is not None
    assert notice.deadline == 2000.0
