"""Whole runs with failures, saves, stops and newer executors in any order: three things that hold.

No checkpoint is committed once a newer executor has taken the run over; ranks are not started again
beyond a budget; a run ends once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hpctrain.callback import RunContext, UserCallback
from hpctrain.config import FailureConfig, RunConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import LaunchError, RunStoppedError, SupersededError, TrainingFailedError
from hpctrain.execute import attempt_executor, executor, executor_record
from hpctrain.execute.executor import Executor
from hpctrain.execute.failure_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS
from hpctrain.execute.fence import Fence
from hpctrain.execute.health import Health
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.testing.fake_ranks import FakeRanks
from tests.plans import make_plan

RUNS = 1_000
BUDGETS = {
    "worker": "max_failures",
    "start": "controller_failure_limit",
    "preemption": "max_preemption_failures",
}


class Ends(UserCallback):
    """Keeps the state at each end."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def on_finish(self, run_context: RunContext, result: Any) -> None:
        self.states.append(result.state)


class Story:
    """What happens to one run, drawn from a seed, and what was there when it was taken over."""

    def __init__(self, draw: random.Random, paths: RunPaths) -> None:
        self.draw = draw
        self.paths = paths
        # In how many things that ranks do it is taken over, and asked to stop.
        self.taken_over_in = draw.randint(1, 25) if draw.random() < 0.3 else None
        self.stopped_in = draw.randint(1, 25) if draw.random() < 0.4 else None
        self.failure_rate = draw.choice([0.05, 0.15, 0.7])
        self.left_behind: tuple[list[str], bytes] | None = None

    def go_on(self) -> None:
        """Let that happen which is due."""
        if self.taken_over_in is not None:
            self.taken_over_in -= 1
            if self.taken_over_in == 0:
                Fence(self.paths).take(self.paths)
                self.left_behind = self.written
        if self.stopped_in is not None:
            self.stopped_in -= 1
            if self.stopped_in == 0:
                self.paths.stop_request.touch()

    @property
    def written(self) -> tuple[list[str], bytes]:
        """The checkpoints that there are, and what the executor wrote down."""
        names = sorted(p.name for p in self.paths.checkpoints.iterdir() if p.name[0] != ".")
        return names, self.paths.ledger.read_bytes()


class Group(FakeRanks):
    """Stands for a `WorkerGroup`: its two ranks do what comes to the mind of a story."""

    story: Story
    missing_nodes = ()
    hostnames = ("node0", "node1")

    def __init__(self, *, placement: Any, attempt: int, **_: Any) -> None:
        super().__init__(placement.num_workers)
        self.health = Health()
        self.attempt = attempt
        self._script: Iterator[None] = iter(())

    def start(self, timeout_s: float, **_: Any) -> None:
        self.story.go_on()
        if self.story.draw.random() < self.story.failure_rate:
            raise LaunchError("no slots", transient=self.story.draw.random() < 0.9)

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        super().broadcast(op, body, **details)
        if op == "train":
            self._script = self._train(details["first_report"])
        elif op == "freeze":
            for rank in range(len(self)):
                self.send("frozen", rank, report=self._reports)
        elif op == "stop":
            self._stops_after = details["report"]

    def poll(self, timeout_s: float) -> list[Frame]:
        self.story.go_on()
        next(self._script, None)
        return super().poll(timeout_s)

    def shutdown(self, patience_s: float = 0.0) -> None:
        super().shutdown(patience_s)
        self.story.go_on()

    def _train(self, first: int) -> Iterator[None]:
        draw = self.story.draw
        self._reports, self._stops_after = first, first + 1000
        for _ in range(draw.randint(0, 5)):
            if self._reports >= self._stops_after:
                break
            self._reports += 1
            saves = draw.random() < 0.5
            for rank in range(len(self)):
                self.send("report", rank, b'{"metrics":{}}', part_follows=saves)
            yield
            if saves:
                self._save(self._reports)
            yield
            if draw.random() < self.story.failure_rate:
                self.fail(draw.randrange(len(self)), "no more")
                return
        notified = self._reports >= self._stops_after
        for rank in range(len(self)):
            self.send("returned", rank, reports=self._reports, collectives=0)
            self.send("done", rank, notified=notified)

    def _save(self, report: int) -> None:
        for rank in range(len(self)):
            directory = staging_directory(
                self.story.paths.checkpoints, attempt=self.attempt, report=report, rank=rank
            )
            directory.mkdir(parents=True)
            (directory / f"part{rank}").write_text(str(report))
            part = StagedPart(files=tuple(seal(directory)))
            self.send("part", rank, part.to_bytes(), report=report)


def longest_without_progress(events: list[dict[str, Any]]) -> int:
    """Return how many attempts in a row failed at most, and left no newer checkpoint."""
    saved = longest = row = 0
    for event in events:
        if event["event"] == "attempt-ended" and event["kind"] is not None:
            row = row + 1 if event["saved"] == saved else 0
            saved, longest = event["saved"], max(longest, row)
    return longest


def run_in_some_order(seed: int, root: Path) -> str:
    """Run a run; return how it ended, in a word."""
    draw, paths, ends = random.Random(seed), RunPaths(root), Ends()
    paths.checkpoints.mkdir(parents=True)
    story = Group.story = Story(draw, paths)
    budgets = {name: draw.choice([-1, 0, 1, 2]) for name in BUDGETS.values()}
    config = RunConfig(name="run", failure_config=FailureConfig(**budgets), callbacks=[ends])
    error: Exception | None = None
    try:
        Executor(paths=paths, plan=make_plan("local"), run_config=config, spec_digest="").run()
    except (LaunchError, TrainingFailedError) as raised:
        error = raised
    # Nothing that the older executor wrote after the newer one had begun.
    if story.left_behind is not None:
        assert story.written == story.left_behind
        if isinstance(error, SupersededError):
            assert ends.states == ["stopped"]
            return "superseded"
        # It was over already: what was left to do needed no look.
        return "over before"
    events, status = list(read_events(paths)), read_status(paths)
    counts = Counter(event["event"] for event in events)
    assert status is not None
    assert status.state.is_final
    assert counts["executor-ended"] == counts["run-ended"] == 1
    assert ends.states == [status.state.value]
    assert counts["attempt-started"] == counts["attempt-ended"]
    # No restart beyond a budget, none forgotten.
    failures = [e for e in events if e["event"] == "attempt-ended" and e["kind"] is not None]
    # One that is decided on is not begun where the run is asked to stop in between.
    unbegun = counts["restart"] - max(0, counts["attempt-started"] - 1)
    assert unbegun == 0 or (unbegun == 1 and status.state is RunState.STOPPED)
    paid = Counter(event["kind"] for event in failures[: counts["restart"]])
    for kind, name in BUDGETS.items():
        assert budgets[name] == -1 or paid[kind] <= budgets[name]
    assert longest_without_progress(events) <= MAX_ATTEMPTS_WITHOUT_PROGRESS
    if status.state is RunState.STOPPED:
        assert isinstance(error, RunStoppedError)
        assert paths.stop_request.exists()
    else:
        assert (error is None) == (status.state is RunState.FINISHED)
    return status.state.value


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, since it is not the disk that is tried."""
    with TemporaryDirectory(dir="/dev/shm", prefix="hpctrain-test-") as name:
        yield Path(name)


def test_a_run_commits_restarts_and_ends_rightly_in_whatever_order_things_happen(
    memory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(executor, "WorkerGroup", Group)
    monkeypatch.setattr(executor.time, "sleep", lambda _: None)
    monkeypatch.setattr(attempt_executor, "_QUIET_S", 0.0)
    monkeypatch.setattr(executor_record, "STATUS_INTERVAL_S", 0.001)
    ends: Counter[str] = Counter()
    for seed in range(RUNS):
        try:
            ends[run_in_some_order(seed, memory / str(seed))] += 1
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # Or it would show nothing.
    assert all(ends[name] > RUNS // 50 for name in ("finished", "failed", "stopped", "superseded"))
