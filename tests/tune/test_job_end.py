"""How long trials are waited for, by what is known of the end of the job."""

from __future__ import annotations

import threading

import pytest

from hpctrain.execute import time_limit
from hpctrain.slurm.output import Job
from hpctrain.tune import job_end as module
from hpctrain.tune.job_end import JobEnd

PATIENCE_S = 100.0


class Clock:
    """What is the time, and when the job ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, end: float | None) -> None:
        self.now, self.end = 1000.0, end
        for each in (module, time_limit):
            monkeypatch.setattr(each.time, "time", lambda: self.now)
        monkeypatch.setattr(time_limit, "read_own_job", lambda **_: self.job)
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)

    @property
    def job(self) -> Job:
        return Job(job_id="7", state="RUNNING", end_time=self.end, is_unlimited=self.end is None)


def ask(job_end: JobEnd) -> str:
    """Return why the job ends, once Slurm has answered what it was asked."""
    why = job_end.why()
    for thread in threading.enumerate():
        if thread.name == "hpctrain-time-limit":
            thread.join(30)
    return why or job_end.why()


def test_trials_have_what_is_left_before_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, job_end = Clock(monkeypatch, end=1060.0), JobEnd()
    with job_end.watched():
        assert not ask(job_end)
        # Whatever stops the sweep.
        assert job_end.stop_times(PATIENCE_S).patience_s == 40
        clock.now = 1046.0
        assert ask(job_end) == "the time limit of job 7 ends"
        assert job_end.stop_times(PATIENCE_S).patience_s == 7
        clock.now = 1052.0
        assert job_end.stop_times(PATIENCE_S).patience_s == 4


@pytest.mark.parametrize("end", [None, 90_000.0])
def test_they_have_all_their_time_where_the_job_goes_on(
    end: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, end=end)
    job_end = JobEnd()
    assert job_end.stop_times(PATIENCE_S).patience_s == PATIENCE_S
    with job_end.watched():
        assert not ask(job_end)
        assert job_end.stop_times(PATIENCE_S).patience_s == PATIENCE_S
