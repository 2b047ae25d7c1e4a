"""How an agent lets a run go on whose executor is lost; how it notices is in tests/elastic."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute import lease
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm.output import Job
from hpctrain.tune.jobs_runner import find_job_end


class Slurm:
    """Stands in for Slurm: its own job, and what it is asked to do."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.done: list[tuple[str, Any]] = []
        self.refusals: dict[str, list[LaunchError]] = {}

    def _refuse(self, what: str) -> None:
        if refusals := self.refusals.get(what):
            raise refusals.pop(0)

    def read_own_job(self, patience_s: float) -> Job | None:
        self._refuse("read")
        return self.job

    def requeue(self, job_id: str, patience_s: float) -> None:
        self._refuse("requeue")
        self.done.append(("requeue", job_id))

    def submit_successor(self, paths: RunPaths, **details: Any) -> str:
        self._refuse("submit")
        self.done.append(("submit", details["checkpoint"]))
        return "8"

    def cancel_job(self, job_id: str) -> None:
        self.done.append(("cancel", job_id))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    for name in ("read_own_job", "requeue", "submit_successor", "cancel_job"):
        monkeypatch.setattr(lease, name, getattr(slurm, name))
    monkeypatch.setattr(lease, "is_reachable", lambda _: False)
    monkeypatch.setattr(lease, "_LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(lease, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return slurm


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def lose(
    paths: RunPaths,
    *,
    launcher: str,
    requeue: bool = False,
    job_id: str = "7",
    tuner_sign: str | None = None,
    let_end: Callable[[bool], object] = lambda _: None,
) -> None:
    """Let an agent find out that the executor of a run is lost."""
    status = RunStatus(
        name="run",
        state=RunState.RUNNING,
        launcher=launcher,
        job_id=job_id,
        attempt=2,
        checkpoint="000004",
        owner_host="node1",
    )
    RunRecord(paths).write(status)
    plan = {"launcher": launcher, "requeue": requeue, "tuner_sign": tuner_sign}
    content = {"format": 2, "launch_plan": plan}
    paths.plan.write_text(json.dumps(content))
    lease.take_over(paths.root, ("192.0.2.1", 9), lease_s=0.02, let_end=let_end)


def running(**fields: Any) -> Job:
    return Job(job_id="7", state="RUNNING", **fields)


def test_a_job_that_may_be_requeued_is(slurm: Slurm, paths: RunPaths):
    slurm.job = running(is_batch=True, may_requeue=True)
    lose(paths, launcher="slurm", requeue=True)
    # Slurm ends the job with it.
    assert slurm.done == [("requeue", "7")]
    (event,) = read_events(paths)
    assert (event["event"], event["host"], event["attempt"]) == ("executor-lost", "node1", 2)


def test_a_job_that_slurm_does_not_queue_again_has_a_successor(slurm: Slurm, paths: RunPaths):
    slurm.job = running(is_batch=True, may_requeue=True)
    slurm.refusals = {"requeue": [LaunchError("Requested operation is presently disabled")]}
    lose(paths, launcher="slurm", requeue=True)
    assert slurm.done == [("submit", "000004"), ("cancel", "7")]


AWAY = LaunchError("Unable to contact slurm controller", transient=True)


@pytest.mark.parametrize("what", ["read", "requeue"])
def test_slurm_is_asked_again_once_it_answers(slurm: Slurm, paths: RunPaths, what: str):
    slurm.job = running(is_batch=True, may_requeue=True)
    slurm.refusals = {what: [AWAY, AWAY]}
    lose(paths, launcher="slurm", requeue=True)
    assert slurm.done == [("requeue", "7")]


def test_an_agent_that_comes_second_tries_when_the_first_is_refused_and_dies(
    slurm: Slurm, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease, "_PAUSES_S", (0.01,) * 3000)
    comes_second = threading.Event()

    def refuse(patience_s: float) -> Job | None:
        """Keep the first agent until the second has lost the race."""
        monkeypatch.setattr(lease, "read_own_job", slurm.read_own_job)
        second.start()
        assert comes_second.wait(60.0)
        raise AWAY

    def let_end(may_end: bool) -> None:
        if may_end:
            comes_second.set()

    monkeypatch.setattr(lease, "read_own_job", refuse)
    how = {"launcher": "slurm", "let_end": let_end}
    second = threading.Thread(target=lose, args=[paths], kwargs=how, daemon=True)
    slurm.job = running()
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="slurm", attempt=2)
    assert not lease._acts(paths, status, is_last=False)
    second.join(60.0)
    assert not second.is_alive()
    assert slurm.done == [("submit", "000004"), ("cancel", "7")]


def test_a_signal_ends_an_agent_that_came_second_only_while_it_waits(
    slurm: Slurm, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    changes: list[bool] = []

    def let_end(may_end: bool) -> None:
        changes.append(may_end)
        if may_end:
            # The first agent is refused.
            paths.lease(2).unlink()

    is_first = lease._is_first

    def ask(paths: RunPaths, attempt: int) -> bool:
        assert not changes[-1]
        return is_first(paths, attempt)

    monkeypatch.setattr(lease, "_is_first", ask)
    paths.lease(2).touch()
    slurm.job = running()
    lose(paths, launcher="slurm", let_end=let_end)
    assert slurm.done == [("submit", "000004"), ("cancel", "7")]
    assert changes == [False, True, False]


def test_of_a_run_that_cannot_go_on_the_job_is_cancelled(
    slurm: Slurm, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    slurm.job = running()
    slurm.refusals = {"submit": [LaunchError("AssocMaxSubmitJobLimit")] * 3}
    lose(paths, launcher="slurm")
    assert slurm.done == [("cancel", "7_3")]
    assert [event["event"] for event in read_events(paths)][-1] == "gave-up"


@pytest.mark.parametrize(("requeue", "act"), [(True, "requeue"), (False, "cancel")])
def test_of_an_array_only_the_task_of_the_run_is_ended(
    slurm: Slurm, paths: RunPaths, requeue: bool, act: str
):
    slurm.job = running(is_batch=True, may_requeue=True, array_task="7_3")
    lose(paths, launcher="allocation", requeue=requeue)
    assert slurm.done == [(act, "7_3")]


@pytest.mark.parametrize(
    ("may_requeue", "is_batch", "requeue"),
    [(False, True, True), (True, False, True), (True, True, False)],
)
def test_otherwise_another_job_is_submitted_and_this_one_cancelled(
    slurm: Slurm, paths: RunPaths, may_requeue: bool, is_batch: bool, requeue: bool
):
    slurm.job = running(is_batch=is_batch, may_requeue=may_requeue)
    lose(paths, launcher="slurm", requeue=requeue)
    assert slurm.done == [("submit", "000004"), ("cancel", "7")]
    status = read_status(paths)
    assert status is not None
    assert (status.state, status.job_id) == (RunState.SUBMITTED, "8")


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_tuner_at_work_submits_the_next_job_of_its_trial(
    slurm: Slurm, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, is_alive: bool
):
    monkeypatch.setattr(lease, "shows_life", lambda sign, patience_s: is_alive)
    slurm.job = running(is_batch=True)
    lose(paths, launcher="slurm", tuner_sign="/scratch/sweep/alive")
    status = read_status(paths)
    assert status is not None
    if not is_alive:
        assert slurm.done == [("submit", "000004"), ("cancel", "7")]
        assert status.state is RunState.SUBMITTED
        return
    assert slurm.done == [("cancel", "7")]
    assert (status.state, status.job_id) == (RunState.STOPPED, "7")
    assert status.error == (
        "node node1, which had the executor, is lost; the tuner of its sweep goes on."
    )
    assert find_job_end(paths) == "node node1, which had the executor, is lost"


def test_the_status_of_a_job_that_runs_the_run_already_stands(slurm: Slurm, paths: RunPaths):
    slurm.job = running()
    lose(paths, launcher="slurm", job_id="9")
    status = read_status(paths)
    assert status is not None
    assert (status.state, status.job_id) == (RunState.RUNNING, "9")


def test_a_job_of_the_users_is_only_cancelled(slurm: Slurm, paths: RunPaths):
    slurm.job = running()
    lose(paths, launcher="allocation")
    assert slurm.done == [("cancel", "7")]


@pytest.mark.parametrize("job", [None, Job(job_id="7", state="COMPLETING")])
def test_a_job_that_slurm_ends_by_itself_is_left_to_it(
    slurm: Slurm, paths: RunPaths, job: Job | None
):
    slurm.job = job
    lose(paths, launcher="slurm")
    assert slurm.done == []


def test_a_run_that_is_over_is_left_alone(slurm: Slurm, paths: RunPaths):
    RunRecord(paths).write(RunStatus(name="run", state=RunState.FINISHED, launcher="slurm"))
    lease.take_over(paths.root, ("192.0.2.1", 9), lease_s=0.02)
    assert read_events(paths) == []
