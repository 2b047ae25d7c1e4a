"""What the end of a trial's job means, by what Slurm says of it."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import LaunchError
from hpctrain.launch.request import Submission
from hpctrain.own_time import Deadline
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.slurm.output import Job
from hpctrain.tune import jobs_runner
from hpctrain.tune.job_life import JobLife
from hpctrain.tune.jobs_runner import JobsRunner
from hpctrain.tune.runner import End
from hpctrain.tune.trial import Trial
from tests.plans import make_plan


def end_of(folder: Path, exit_code: str, *, log: str = "", attempt: int = 0) -> End:
    """Return how a trial has ended whose job is over."""
    runner = JobsRunner(lambda trial_id, config: None, lambda name: folder / name)  # type: ignore[arg-type,return-value]
    paths = RunPaths(folder / "trial_00000")
    paths.root.mkdir()
    paths.job_log("7").parent.mkdir(exist_ok=True)
    paths.job_log("7").write_text(log)
    status = RunStatus(
        name="trial_00000",
        state=RunState.SUBMITTED,
        launcher="slurm",
        job_id="7",
        attempt=attempt,
    )
    write_status(paths, status)
    watch = runner._watch(Trial(trial_id="trial_00000", config={}))
    assert isinstance(watch.life, JobLife)
    watch.life.last_job = Job(job_id="7", state="FAILED", exit_code=exit_code, nodes="node1")
    end = runner._explain_death(watch, status)
    after = read_status(paths)
    assert after is not None
    assert after.state is RunState.STOPPED
    return end


@pytest.mark.parametrize(
    ("exit_code", "log", "is_for_all"),
    [
        ("0:53", "", True),
        ("66:0", "", True),
        ("66:0", "hpctrain: node1 does not see the run directory /tmp/x. Choose another.\n", True),
        ("66:0", "no input\n", False),
        ("1:0", "module: not found\n", False),
    ],
)
def test_a_job_whose_node_lacks_a_path_has_failed_as_all_others_would(
    tmp_path: Path, exit_code: str, log: str, is_for_all: bool
) -> None:
    end = end_of(tmp_path, exit_code, log=log)
    assert (end.failed, end.is_for_all) == (True, is_for_all)
    if is_for_all:
        assert "not see the run directory" in end.reason


def test_a_job_that_had_begun_has_seen_its_files(tmp_path: Path) -> None:
    assert not end_of(tmp_path, "66:0", attempt=1).is_for_all


def test_no_job_is_waited_for_before_slurm_was_asked_to_end_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = [0.0], []

    def cancel(paths: RunPaths, *, now: bool, patience_s: float) -> str:
        asked.append((paths.root.name, patience_s))
        clock[0] += patience_s
        if paths.root.name == "b":
            raise LaunchError("Slurm does not answer")
        return ""

    monkeypatch.setattr(jobs_runner, "cancel_run", cancel)
    monkeypatch.setattr(jobs_runner, "Deadline", partial(Deadline, clock=lambda: clock[0]))
    runner = JobsRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    runner.end([Trial(trial_id=name, config={}) for name in "abc"], patience_s=30.0)
    assert asked == [("a", 0.0), ("b", 0.0), ("c", 0.0), ("a", 30.0), ("c", 0.0)]


WHY = "the time limit of job 7 ends"
LEFT: dict[str, Any] = {"event": "left-to-tuner", "why": WHY, "checkpoint": "000004"}


def runner_of(folder: Path, events: Sequence[Mapping[str, Any]], state: RunState) -> JobsRunner:
    """Return the runner of a trial whose run has ended, with these last events."""
    paths = RunPaths(folder / "trial_00000")
    paths.root.mkdir()
    status = RunStatus(
        name="trial_00000", state=state, launcher="slurm", job_id="7", error="it ended"
    )
    write_status(paths, status)
    for event in ({"event": "fit"}, {"event": "attempt-started", "attempt": 1}, *events):
        RunRecord(paths).append(**event)
    return JobsRunner(lambda trial_id, config: None, lambda name: folder / name)  # type: ignore[arg-type,return-value]


TRIAL = Trial(trial_id="trial_00000", config={})


@pytest.mark.parametrize(
    ("events", "state", "is_to_go_on"),
    [
        ([LEFT, {"event": "run-ended"}], RunState.STOPPED, True),
        # Its executor was killed before it could write more, and that was written for it.
        ([LEFT], RunState.FAILED, True),
        ([], RunState.STOPPED, False),
        ([LEFT], RunState.FINISHED, False),
        # Its next job was cancelled before it began.
        ([LEFT, {"event": "fit", "continues": True}], RunState.STOPPED, False),
        ([LEFT, {"event": "executor-started"}], RunState.STOPPED, False),
    ],
)
def test_a_run_that_was_left_to_the_tuner_goes_on(
    tmp_path: Path, events: list[dict[str, Any]], state: RunState, is_to_go_on: bool
) -> None:
    runner = runner_of(tmp_path, events, state)
    end = runner.look(TRIAL).end
    assert end is not None
    assert end.is_orphaned == is_to_go_on
    assert runner._watch(TRIAL).is_orphaned == is_to_go_on
    if is_to_go_on:
        assert (end.failed, end.was_stopped, end.reason) == (False, True, WHY)


def test_a_run_that_a_person_has_stopped_meanwhile_does_not_go_on(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, [LEFT], RunState.STOPPED)
    RunPaths(tmp_path / "trial_00000").stop_request.touch()
    end = runner.look(TRIAL).end
    assert end is not None
    assert not end.is_orphaned


def test_a_ledger_that_cannot_be_read_now_ends_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(tmp_path, [LEFT], RunState.STOPPED)
    with monkeypatch.context() as patched:

        def fail(paths: RunPaths) -> list[Any]:
            raise OSError(errno.EIO, "Input/output error", str(paths.ledger))

        patched.setattr(jobs_runner, "read_events", fail)
        assert runner.look(TRIAL).end is None
    runner._look_at.clear()
    end = runner.look(TRIAL).end
    assert end is not None
    assert end.is_orphaned


def test_a_restored_sweep_continues_with_the_budgets_of_a_run_that_was_left_to_it(
    tmp_path: Path,
) -> None:
    runner = runner_of(tmp_path, [LEFT], RunState.STOPPED)
    assert not runner.attach(TRIAL)
    assert runner._watch(TRIAL).is_orphaned


@pytest.mark.parametrize(("attempts", "expected"), [(0, {"hold": None}), (1, {})])
def test_only_the_first_job_of_a_trial_waits_for_what_that_was_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int, expected: dict[str, Any]
) -> None:
    paths = RunPaths(tmp_path / "trial_00000")
    paths.root.mkdir()
    for number in range(attempts):
        RunRecord(paths).append("attempt-started", attempt=number + 1)
    runner = JobsRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    begun: list[Submission] = []
    monkeypatch.setattr(jobs_runner, "submit_prepared", lambda given, **_: begun.append(given))
    plan = replace(make_plan("slurm"), first_job_directives={"hold": None})
    unused: Any = None
    request: Any = SimpleNamespace(paths=paths)
    runner._begin(TRIAL, Submission(request=request, plan=plan, site=unused, spec=unused))
    assert [given.plan.first_job_directives for given in begun] == [expected]
