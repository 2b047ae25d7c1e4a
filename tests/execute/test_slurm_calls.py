"""`SlurmCalls`, with a Slurm that says what the test wants."""

from __future__ import annotations

import threading

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute import slurm_calls
from hpctrain.execute.slurm_calls import SlurmCalls
from hpctrain.timeouts import Timeout


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    cancelled: list[list[str]] = []
    monkeypatch.setattr(slurm_calls, "cancel_jobs", cancelled.append)
    return cancelled


def test_jobs_are_cancelled_in_one_call_that_no_question_holds_up(
    cancelled: list[list[str]],
) -> None:
    calls, answered, begun = SlurmCalls(), threading.Event(), threading.Event()
    calls.begin(lambda: answered.wait(30), changes=False)
    calls.begin(lambda: begun.wait(30), changes=True)
    submission = calls.begin(lambda: "9", changes=True)
    ends = [calls.cancel("000001", "7"), calls.cancel("000002", "8")]
    ends.append(calls.cancel("000003", submission))
    begun.set()
    calls.close(30)
    assert cancelled == [["7", "8", "9"]]
    assert all(one.done() for one in ends)
    answered.set()


def test_a_job_that_is_not_cancelled_in_time_is_named(
    cancelled: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    calls, answered = SlurmCalls(), threading.Event()
    calls.begin(lambda: answered.wait(30), changes=True)
    ends = [calls.cancel("000001", "7"), calls.cancel("000002", "8")]
    calls.close(Timeout(0.05, "soon", "Slurm", "a warning"))
    told = capsys.readouterr().err
    answered.set()
    assert "(000001, 000002) may go on: Slurm did not answer within 0.05 s (timeout soon)" in told
    assert "scancel 7 8" in told
    assert cancelled == []
    assert not any(one.done() for one in ends)


def test_without_a_thread_a_call_fails_for_now_and_is_not_made_later(
    cancelled: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = SlurmCalls()
    made: list[str] = []
    with monkeypatch.context() as limit:

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        limit.setattr(threading.Thread, "start", start)
        refused = calls.begin(lambda: made.append("first"), changes=True)
        ended = calls.cancel("000001", "7")
    error = refused.exception(0)
    assert isinstance(error, LaunchError)
    assert error.transient
    calls.begin(lambda: made.append("second"), changes=True)
    calls.close(30)
    assert made == ["second"]
    assert cancelled == []
    assert isinstance(ended.exception(0), LaunchError)
