from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import RunConfig
from hpctrain.errors import LaunchError, RunStoppedError, WorkerError
from hpctrain.execute import preemption as preemption_module
from hpctrain.execute import time_limit
from hpctrain.execute.preemption import Preemption
from hpctrain.execute.stop_decision import StopDecision, StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.history import History
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.output import Job
from tests.plans import make_plan


class Wishes:
    """What a recorder knows of stops."""

    def __init__(self) -> None:
        self.decision = StopDecision()
        self.status: dict[str, Any] = {}
        self.run_record = SimpleNamespace(
            change=self.status.update,
            change_later=self.status.update,
            history=History(),
            hand_over=lambda metrics: None,
            name_successor=lambda job_id: self.status.update(job_id=job_id),
        )
        self.paths = RunPaths(Path("/scratch/run"))
        self.checkpoints = SimpleNamespace(latest_name="000004")

    @property
    def stop(self) -> StopNotice | None:
        return self.decision.notice

    def check_stop_request(self) -> None:
        """Nobody asks."""

    def checkpoint_path(self) -> str:
        return "/scratch/run/checkpoints/000004"

    def progress(self) -> dict[str, Any]:
        return {}

    def request_stop(self, notice: StopNotice) -> None:
        self.decision = self.decision.after_request(notice)

    def refine_stop(self, before: StopNotice, after: StopNotice) -> None:
        self.decision = self.decision.after_answer(before, after)


def preemption(launcher: Any, recorder: Wishes, *, tuner_sign: str | None = None) -> Preemption:
    plan = replace(make_plan(launcher, num_workers=1, cpus=4), tuner_sign=tuner_sign)
    recorded: Any = recorder
    return Preemption(plan=plan, run_config=RunConfig(), recorder=recorded, signals=[])


@pytest.mark.parametrize(
    ("launcher", "leaves"), [("slurm", True), ("allocation", True), ("local", False)]
)
def test_a_job_that_no_warning_came_to_is_left_before_its_limit(
    monkeypatch: pytest.MonkeyPatch, launcher: str, leaves: bool
):
    times = [1000.0]
    monkeypatch.setattr(
        time_limit, "time", SimpleNamespace(time=lambda: times[-1], monotonic=lambda: times[-1])
    )
    job = Job(job_id="7", state="RUNNING", end_time=2000.0)
    monkeypatch.setattr(time_limit, "read_own_job", lambda **_: job)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    recorder = Wishes()
    of_run = preemption(launcher, recorder)
    of_run.begin()
    for thread in threading.enumerate():
        if thread.name == "hpctrain-time-limit":
            thread.join(30)
    of_run.step()
    assert recorder.status == {"deadline": 2000.0 if leaves else None}
    for later in (1899.0, 1901.0):
        assert recorder.stop is None
        times.append(later)
        of_run.step()
    assert (recorder.stop is not None) == leaves
    if recorder.stop is not None:
        assert (recorder.stop.kind, recorder.stop.deadline) == (StopKind.TIME_LIMIT, 2000.0)


@pytest.mark.parametrize(
    ("state", "error", "leaves"),
    [
        ("COMPLETING", LaunchError("Slurm job 7 has expired"), True),
        ("CANCELLED", LaunchError("Slurm job 7 has expired"), True),
        ("RUNNING", LaunchError("Requested nodes are busy"), False),
        ("CANCELLED", WorkerError("a rank failed", rank=0, hostname="node1"), False),
    ],
)
def test_ranks_that_could_not_start_in_a_job_that_ends_are_not_started_again(
    monkeypatch: pytest.MonkeyPatch, state: str, error: Exception, leaves: bool
) -> None:
    """On a login node, where salloc has started it, an executor does not end with its job."""
    job = Job(job_id="7", state=state)
    monkeypatch.setattr(preemption_module, "read_own_job", lambda **_: job)
    recorder = Wishes()
    tracker = AttemptTracker(world_size=1, first_report=0)
    preemption("allocation", recorder).look_after_failure(tracker, error)
    assert (recorder.stop is not None) == leaves
    if recorder.stop is not None:
        assert recorder.stop.kind is StopKind.PREEMPTION


@pytest.mark.parametrize(
    ("printed", "left_s", "kind"),
    [
        ("srun: error: node2: task 1: User defined signal 2", 60, StopKind.TIME_LIMIT),
        ("srun: error: node2: task 1: User defined signal 1", 60, StopKind.TIME_LIMIT),
        ("EXIT STRING: User defined signal 2 (signal 12)", 9000, StopKind.PREEMPTION),
        # By which hydra ends the ranks of one that has died.
        ("EXIT STRING: User defined signal 1 (signal 10)", 60, None),
        ("srun: error: node2: task 1: Killed", 60, None),
    ],
)
def test_a_warning_that_kills_what_is_being_started_is_one_all_the_same(
    monkeypatch: pytest.MonkeyPatch, printed: str, left_s: float, kind: StopKind | None
) -> None:
    job = Job(job_id="7", state="RUNNING", end_time=time.time() + left_s)
    monkeypatch.setattr(preemption_module, "read_own_job", lambda **_: job)
    recorder = Wishes()
    tracker = AttemptTracker(world_size=1, first_report=0)
    error = LaunchError(f"the agents of the nodes did not start: {printed}")
    preemption("allocation", recorder).look_after_failure(tracker, error)
    assert (recorder.stop and recorder.stop.kind) is kind


@pytest.mark.parametrize("has_failed", [False, True])
def test_ranks_receive_a_stop_before_slurm_has_answered_why(
    monkeypatch: pytest.MonkeyPatch, has_failed: bool
) -> None:
    answers = threading.Event()
    job = Job(job_id="7", state="RUNNING", end_time=time.time() + 60)

    def ask(*, patience_s: float) -> Job:
        assert answers.wait(60)
        return job

    monkeypatch.setattr(preemption_module, "_ANSWER_S", 0.0)
    monkeypatch.setattr(preemption_module, "read_own_job", ask)
    recorder = Wishes()
    of_run = preemption("slurm", recorder)
    of_run._signals.append("SIGUSR2")
    for _ in range(2):
        of_run.step()
        assert recorder.stop == StopNotice(kind=StopKind.PREEMPTION, why="it got SIGUSR2")
    answers.set()
    if has_failed:
        # Which budget pays for that follows from the answer.
        tracker = AttemptTracker(world_size=1, first_report=0)
        of_run.look_after_failure(tracker, RunStoppedError("left"))
    else:
        for thread in threading.enumerate():
            if thread.name == "hpctrain-signal":
                thread.join(30)
        of_run.step()
    assert recorder.stop is not None
    assert (recorder.stop.kind, recorder.stop.deadline) == (StopKind.TIME_LIMIT, job.end_time)


@pytest.mark.parametrize("kind", [StopKind.TIME_LIMIT, StopKind.TOTAL_TIME, StopKind.REQUEST])
def test_a_preemption_shortens_the_time_of_a_run_that_stops_already(
    monkeypatch: pytest.MonkeyPatch, kind: StopKind
) -> None:
    now, asks = time.time(), []
    job = Job(job_id="7", state="RUNNING", end_time=now + 60, is_preempted=True)

    def ask(*, patience_s: float) -> Job:
        asks.append(patience_s)
        return job

    monkeypatch.setattr(preemption_module, "read_own_job", ask)
    monkeypatch.setattr(preemption_module, "_ANSWER_S", 60.0)
    recorder = Wishes()
    recorder.request_stop(StopNotice(kind=kind, why="test", deadline=now + 600))
    of_run = preemption("slurm", recorder)
    of_run._signals.append("SIGTERM")
    for _ in range(3):
        of_run.step()
        assert recorder.stop == StopNotice(kind=kind, why="test", deadline=now + 60)
        # Every rank gets it, too, and Slurm sends it again at the end.
        of_run.take_signals(["SIGTERM"] * 3)
        of_run._signals.append("SIGTERM")
    assert len(asks) == 1


def test_what_a_second_signal_means_is_asked_once_the_first_is_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, asks = threading.Event(), []
    now = time.time()

    def ask(*, patience_s: float) -> Job:
        asks.append(patience_s)
        assert answers.wait(60)
        is_preempted = len(asks) == 2
        end_time = now + (30 if is_preempted else 60)
        return Job(job_id="7", state="RUNNING", end_time=end_time, is_preempted=is_preempted)

    monkeypatch.setattr(preemption_module, "read_own_job", ask)
    monkeypatch.setattr(preemption_module, "_ANSWER_S", 0.0)
    recorder = Wishes()
    of_run = preemption("slurm", recorder)
    of_run._signals.extend(["SIGUSR2", "SIGTERM"])
    of_run.step()
    of_run.step()
    assert len(asks) == 1
    answers.set()
    monkeypatch.setattr(preemption_module, "_ANSWER_S", 60.0)
    for thread in threading.enumerate():
        if thread.name == "hpctrain-signal":
            thread.join(30)
    of_run.step()
    assert len(asks) == 2
    assert recorder.stop is not None
    # The first of two reasons that weigh the same stands, and the earlier end counts.
    assert (recorder.stop.kind, recorder.stop.deadline) == (StopKind.TIME_LIMIT, now + 30)


LIMIT = "sbatch: error: AssocMaxSubmitJobLimit"
LEFT = {
    "event": "left-to-tuner",
    "time": 0.0,
    "why": "the time limit of job 7 ends",
    "checkpoint": "000004",
}


@pytest.mark.parametrize(
    ("sign", "is_alive", "refusal", "outcome"),
    [
        (None, False, "", "8"),
        ("/scratch/sweep/alive", True, "", RunStoppedError),
        ("/scratch/sweep/alive", False, "", "8"),
        # No one else knows that the site takes a job later.
        ("/scratch/sweep/alive", False, LIMIT, RunStoppedError),
        ("/scratch/sweep/alive", False, "sbatch: error: invalid account", LaunchError),
        (None, False, LIMIT, LaunchError),
    ],
)
def test_the_tuner_of_a_sweep_submits_the_next_job_of_a_trial(
    monkeypatch: pytest.MonkeyPatch,
    sign: str | None,
    is_alive: bool,
    refusal: str,
    outcome: str | type[Exception],
    tmp_path: Path,
) -> None:
    submitted: list[str] = []

    def submit(paths: RunPaths, **details: Any) -> str:
        if refusal:
            raise LaunchError(refusal)
        submitted.append("8")
        return "8"

    asked: list[tuple[Path, float]] = []

    def look(path: Path, *, patience_s: float) -> bool:
        asked.append((path, patience_s))
        return is_alive

    job = Job(job_id="7", state="RUNNING", is_batch=True)
    monkeypatch.setattr(preemption_module, "read_own_job", lambda **_: job)
    monkeypatch.setattr(preemption_module, "submit_successor", submit)
    monkeypatch.setattr(preemption_module, "shows_life", look)
    recorder = Wishes()
    recorder.paths = RunPaths(tmp_path)
    notice = StopNotice(
        kind=StopKind.TIME_LIMIT,
        why="the time limit of job 7 ends",
        deadline=time.time() + 12.0,
    )
    recorder.request_stop(notice)
    of_run = preemption("slurm", recorder, tuner_sign=sign)
    if isinstance(outcome, str):
        assert of_run.leave(LaunchError("left"))
        assert recorder.status == {"job_id": outcome}
    else:
        with pytest.raises(outcome):
            of_run.leave(LaunchError("left"))
    assert submitted == (["8"] if outcome == "8" else [])
    left = [{**event, "time": 0.0} for event in read_events(recorder.paths)]
    assert left == ([LEFT] if outcome is RunStoppedError else [])
    assert [str(path) for path, _ in asked] == ([] if sign is None else [sign])
    assert all(0 < patience_s <= 6.0 for _, patience_s in asked), "half of what is left"


AWAY = LaunchError("Unable to contact slurm controller.", transient=True)


@pytest.mark.parametrize(
    ("kind", "error", "asks"),
    [
        (StopKind.PREEMPTION, AWAY, 4),
        (StopKind.PREEMPTION, LaunchError("Slurm has forgotten job 7"), 1),
        (StopKind.TIME_LIMIT, AWAY, 1),
    ],
)
def test_a_preempted_run_asks_for_its_job_until_slurm_ends_it(
    monkeypatch: pytest.MonkeyPatch, kind: StopKind, error: LaunchError, asks: int
) -> None:
    job = Job(job_id="7", state="RUNNING", is_batch=True, may_requeue=True)
    asked: list[float] = []

    def ask(*, patience_s: float) -> Job:
        asked.append(patience_s)
        if len(asked) < 4:
            raise error
        return job

    requeued: list[str] = []
    monkeypatch.setattr(preemption_module, "read_own_job", ask)
    monkeypatch.setattr(
        preemption_module, "requeue", lambda job_id, patience_s: requeued.append(job_id)
    )
    recorder = Wishes()
    recorder.run_record.note = lambda event, **details: None
    recorder.request_stop(StopNotice(kind=kind, why="test"))
    if asks == 4:
        assert preemption("slurm", recorder).leave(LaunchError("left"))
    else:
        with pytest.raises(LaunchError):
            preemption("slurm", recorder).leave(LaunchError("left"))
    assert (len(asked), requeued) == (asks, ["7"] if asks == 4 else [])


def test_a_person_ends_a_preempted_run_that_waits_for_slurm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Wishes()
    request = StopNotice(kind=StopKind.REQUEST, why="it was asked to")

    def ask(*, patience_s: float) -> Job:
        recorder.check_stop_request = lambda: recorder.request_stop(request)  # type: ignore[method-assign]
        raise AWAY

    monkeypatch.setattr(preemption_module, "read_own_job", ask)
    recorder.request_stop(StopNotice(kind=StopKind.PREEMPTION, why="test"))
    assert not preemption("slurm", recorder).leave(LaunchError("left"))
    assert recorder.stop is request


def test_of_an_array_only_the_task_of_the_run_is_queued_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = Job(
        job_id="7", state="RUNNING", is_batch=True, may_requeue=True, array_task="7_3",
        is_preempted=True,
    )  # fmt: skip
    requeued: list[str] = []
    monkeypatch.setattr(preemption_module, "read_own_job", lambda **_: job)
    monkeypatch.setattr(
        preemption_module, "requeue", lambda job_id, patience_s: requeued.append(job_id)
    )
    recorder = Wishes()
    recorder.run_record.note = lambda event, **details: None
    recorder.request_stop(StopNotice(kind=StopKind.PREEMPTION, why="job 7 is preempted"))
    assert preemption("allocation", recorder).leave(LaunchError("left"))
    assert requeued == ["7_3"]
