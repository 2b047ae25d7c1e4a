"""Whole runs, in memory, with frames, deaths, signals and clocks in any order.

In every order a run ends once, no checkpoint is committed once a newer executor has taken the run
over, ranks are not started again beyond a budget, and those that leave do so after the same report.
`test_executor_in_any_order` has fewer orders, with a real disk and a real fence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpctrain.callback import RunContext, UserCallback
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig, FailureConfig, RunConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import (
    ConfigError,
    LaunchError,
    RunStoppedError,
    SupersededError,
    TrainingFailedError,
)
from hpctrain.execute import attempt_executor, executor, executor_record, recorder, stop
from hpctrain.execute.attempt_files import write_return_value
from hpctrain.execute.executor import Executor
from hpctrain.execute.executor_record import ExecutorRecord, UnwrittenRecord
from hpctrain.execute.failure_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS
from hpctrain.execute.health import Health
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.result import Result
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.fake_ranks import FakeRanks
from hpctrain.testing.scripted_rank import ScriptedRank, ScriptedRanks
from tests.plans import make_plan

if TYPE_CHECKING:
    from hpctrain.rundir.staging import StagedPart

ORDERS = 10_000
MAX_POLLS = 5_000
REASONS = (StopKind.REQUEST, StopKind.TIME_LIMIT, StopKind.TOTAL_TIME)
SIZES = (1, 2, 2, 3)
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2")
STATUS = RunStatus(name="run", state=RunState.STARTING, launcher="local")
PLANS = {size: make_plan("local", num_workers=size, cpus=size) for size in SIZES}
BUDGETS = {
    "worker": "max_failures",
    "start": "controller_failure_limit",
    "preemption": "max_preemption_failures",
}


class Clock:
    """Time that passes when somebody waits."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Record(UnwrittenRecord):
    """In memory, but a newer executor can take the run over."""

    is_taken_over = False
    num_kept = 0

    @property
    def is_superseded(self) -> bool:
        return self.is_taken_over

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        return self._events

    def check(self) -> None:
        self.check_fence()

    def check_fence(self) -> None:
        if self.is_taken_over:
            raise SupersededError("another executor has taken the run over")

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        yield


def keep(run_record: ExecutorRecord, content: bytes, *, is_stopping: bool) -> None:
    """Stand for `write_return_value`, and count."""
    write_return_value(run_record, content, is_stopping=is_stopping)
    assert isinstance(run_record, Record)
    run_record.num_kept += 1


def no_files(path: Path) -> Result:
    """Stand for `Result.from_path`."""
    raise ConfigError(f"there is no run in {path}")


@cache
def open_checkpoint(directory: Path, name: str) -> Checkpoint:
    """Return a handle, which has no state: all runs have those of the same names."""
    return Checkpoint(directory / name)


class Store(CheckpointStore):
    """Checkpoints without files."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.paths.checkpoints)
        self._record = record
        self._committed: list[Manifest] = []

    def prepare(self) -> None:
        """Do nothing: nothing is left half done."""

    def commit(
        self,
        *,
        attempt: int,
        report: int,
        world_size: int,
        metrics: Mapping[str, Any],
        parts: Mapping[int, StagedPart],
        validation: Mapping[str, Any] | None = None,
    ) -> tuple[Checkpoint, list[str]]:
        assert not self._record.is_taken_over, f"{report} is committed after a newer executor"
        manifest = Manifest(
            name=f"{report:06d}",
            report=report,
            attempt=attempt,
            world_size=world_size,
            metrics=metrics,
            files=(),
            created_at=0.0,
            versions={},
            validation=validation,
        )
        self._committed.append(manifest)
        return self.open(manifest), []

    def open(self, manifest: Manifest) -> Checkpoint:
        return open_checkpoint(self._directory, manifest.name)

    def manifests(self) -> list[Manifest]:
        return [*self._committed]

    def newest_good(self, **_: Any) -> tuple[Manifest | None, list[str]]:
        return (self._committed[-1] if self._committed else None), []

    def retain(self, config: CheckpointConfig, *, protected: Collection[str] = ()) -> None:
        """Keep all."""


class Seen(UserCallback):
    """Takes note of what callbacks are told, by attempt, and of each end."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Take note of another run."""
        self.numbers: dict[int, list[int]] = {}
        self.failures: dict[int, set[int]] = {}
        self.ends: list[str] = []

    def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
        self.numbers.setdefault(run_context.attempt, []).append(run_context.report)

    def after_exception(self, run_context: RunContext, worker_exceptions: Any) -> None:
        assert run_context.attempt not in self.failures
        self.failures[run_context.attempt] = set(worker_exceptions)

    def on_finish(self, run_context: RunContext, result: Any) -> None:
        self.ends.append(result.state)


@cache
def configure(**budgets: int) -> RunConfig:
    """Return the configuration with some budgets: all the runs have few."""
    return RunConfig(name="run", failure_config=FailureConfig(**budgets), callbacks=[Seen()])


class Story:
    """What happens to one run, drawn from a seed, besides what its ranks do."""

    executor: Executor

    def __init__(self, draw: random.Random, clock: Clock) -> None:
        self.draw = draw
        self.clock = clock
        self.size = draw.choice(SIZES)
        self.how: dict[str, Any] = {
            "steps": draw.randint(0, 8),
            "asks_every": draw.choice([0, 1, 1, 2]),
            "obeys": draw.random() < 0.7,
            "saves": draw.random() < 0.5,
            "checkpoint_every": draw.choice([0, 2, 3]),
        }
        self.death_rate = draw.choice([0.1, 0.4])
        # How much ranks do, at most, between two looks at them.
        self.pace = draw.choice([6, 12, 24])
        self.groups: list[Group] = []
        self._stops_at = {kind: draw.randint(1, 25) for kind in REASONS if draw.random() < 0.12}
        self._taken_over_at = draw.randint(1, 25) if draw.random() < 0.15 else 0
        self._signalled_at = draw.randint(1, 25) if draw.random() < 0.05 else 0
        self._turn = 0

    @property
    def record(self) -> Record:
        record = self.executor.recorder.run_record
        assert isinstance(record, Record)
        return record

    @property
    def is_warned(self) -> bool:
        """Whether the run is to leave: its executor got a signal, or its ranks for sure."""
        return bool(self.executor.signals) or any(group.is_warned for group in self.groups)

    def go_on(self) -> None:
        """Let that happen which is due."""
        self._turn += 1
        if self._turn == self._taken_over_at:
            self.record.is_taken_over = True
        if self._turn == self._signalled_at:
            self.executor.signals.append("SIGTERM")
        for kind, at in self._stops_at.items():
            if self._turn >= at:
                self.executor.recorder.request_stop(StopNotice(kind=kind, why=kind.value))


class Group(ScriptedRanks):
    """Stands for a `WorkerGroup`: ranks go on by a little whenever they are polled, or die."""

    story: Story
    missing_nodes = ()
    hostnames = ()

    def __init__(self, *, attempt: int, **_: Any) -> None:
        self._draw = draw = self.story.draw
        super().__init__([self.story.how] * self.story.size)
        self.health = Health()
        self.attempt = attempt
        every = range(len(self))
        rate = self.story.death_rate
        self.dies_at = {rank: draw.randint(0, 12) for rank in every if draw.random() < rate}
        self.signals_at = {
            rank: (draw.randint(0, 12), draw.choice(SIGNALS))
            for rank in every
            if draw.random() < 0.1
        }
        self.dead: set[int] = set()
        self.is_warned = False
        """Whether it is sure that a signal came from outside, and is not srun's after a death."""
        self._signals: list[str] = []
        self._signalled_at = 0.0
        self._has_failed = False
        self._polls = 0
        self._workers = super().workers
        self.story.groups.append(self)

    @property
    def workers(self) -> Sequence[WorkerMetadata]:
        return self._workers

    def start(self, timeout_s: float, **_: Any) -> None:
        self.story.go_on()
        if self._draw.random() < 0.05:
            raise LaunchError("no slots", transient=self._draw.random() < 0.9)

    def poll(self, timeout_s: float) -> list[Frame]:
        self._polls += 1
        assert self._polls < MAX_POLLS, f"it does not end: {[rank.did for rank in self.ranks]}"
        # Not `randint` and `randrange`, which take longer than all that they decide here.
        draw, size = self._draw.random, len(self.ranks)
        self.story.clock.now += timeout_s * draw()
        self.story.go_on()
        frames = FakeRanks.poll(self, timeout_s)
        for _ in range(int(self.story.pace * draw())):
            number = int(size * draw())
            rank = self.ranks[number]
            if number in self.dead:
                continue
            what = draw()
            if what < 0.5:
                if number not in self.over and rank.train():
                    self.over.add(number)
            elif what < 0.75:
                rank.receive()
            else:
                frames += self._received(rank, to_the_end=False)
        if self.signals_at:
            self._pass_signals_on()
        if self.dies_at:
            frames += self._die()
        self._look_for_a_warning(frames)
        return frames

    def _pass_signals_on(self) -> None:
        for number, (at, name) in [*self.signals_at.items()]:
            if self._polls >= at:
                del self.signals_at[number]
                if number not in self.dead | self.over:
                    self.send("signal", number, name=name)

    def _die(self) -> list[Frame]:
        frames = []
        for number in sorted(self.dies_at.keys() - self.dead - self.over):
            if self._polls >= self.dies_at[number]:
                self.dead.add(number)
                # What it sent before arrives.
                frames += self._received(self.ranks[number], to_the_end=True)
                if self._draw.random() < 0.5:
                    self.fail(number, "it fails")
                self.send("lost", number)
        return frames

    def _look_for_a_warning(self, frames: Sequence[Frame]) -> None:
        """Find out what a loop is to make of signals once it has these frames."""
        now = self.story.clock.now
        for frame in frames:
            if frame.op == "signal":
                self._signalled_at = self._signalled_at if self._signals else now
                self._signals.append(frame.header["name"])
            elif frame.op in ("failed", "lost"):
                self._has_failed = True
        if self._signals and not self._has_failed:
            # A rank dies of nothing but SIGTERM after another one where srun sends it.
            is_late = now - self._signalled_at > stop._TERM_DOUBT_S
            self.is_warned |= is_late or set(self._signals) != {"SIGTERM"}

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Do nothing: no frame comes back in the short time that passes here."""

    def _received(self, rank: ScriptedRank, *, to_the_end: bool) -> list[Frame]:
        frames = []
        while (to_the_end or self._draw.random() < 0.8) and (frame := rank.take_frame()):
            frames.append(frame)
        return frames


def longest_without_progress(ended: Sequence[Mapping[str, Any]]) -> int:
    """Return how many attempts in a row failed at most, and left no newer checkpoint."""
    saved = longest = row = 0
    for event in ended:
        if event["kind"] is not None:
            row = row + 1 if event["saved"] == saved else 0
            saved, longest = event["saved"], max(longest, row)
    return longest


def check_attempt(group: Group, seen: Seen, *, is_superseded: bool) -> None:
    """Check what an attempt recorded, and that its ranks left together."""
    numbers = seen.numbers.get(group.attempt, [])
    # In order, and none left out.
    first = group.first_report + 1
    assert numbers == list(range(first, first + len(numbers)))
    if is_superseded or not group.ranks:
        return
    if group.dead:
        assert group.attempt in seen.failures
        assert seen.failures[group.attempt] <= group.dead
        return
    assert group.attempt not in seen.failures
    did = group.ranks[0].did
    assert [rank.did for rank in group.ranks] == [did] * len(group)
    assert numbers == list(range(first, did[-1][1] + 1))


def check_restarts(story: Story, budgets: Mapping[str, int]) -> None:
    """Check that there is none beyond a budget, without progress, or in a job that ends."""
    record = story.record
    ended = [event for event in record.events if event["event"] == "attempt-ended"]
    counts = Counter(event["event"] for event in record.events)
    assert counts["attempt-started"] == len(ended) == len(story.groups)
    paid = Counter(event["kind"] for event in ended[:-1])
    assert None not in paid
    for kind, name in BUDGETS.items():
        assert budgets[name] == -1 or paid[kind] <= budgets[name], (kind, paid, budgets)
    assert longest_without_progress(ended) <= MAX_ATTEMPTS_WITHOUT_PROGRESS
    # One that is decided on is not begun where the run is to end in between.
    unbegun = counts["restart"] - max(0, len(ended) - 1)
    assert unbegun == 0 or (unbegun == 1 and record.status.state is RunState.STOPPED)
    assert not any(group.is_warned for group in story.groups[:-1])


def run_in_some_order(seed: int, paths: RunPaths, clock: Clock) -> str:
    """Run a run; return how it ended, in a word."""
    draw = random.Random(seed)
    story = Group.story = Story(draw, clock)
    budgets: dict[str, Any] = {name: draw.choice([-1, 0, 1, 2]) for name in BUDGETS.values()}
    config = configure(**budgets)
    (seen,) = config.callbacks
    assert isinstance(seen, Seen)
    seen.forget()
    story.executor = run = Executor(
        paths=paths, plan=PLANS[story.size], run_config=config, spec_digest=""
    )
    record = story.record
    run.recorder.checkpoints.store = Store(record)
    error: Exception | None = None
    try:
        run.run()
    except (LaunchError, TrainingFailedError) as raised:
        error = raised
    is_superseded = isinstance(error, SupersededError)
    assert is_superseded == record.is_taken_over
    state, last = record.status.state, story.groups[-1]
    # Once.
    counts = Counter(event["event"] for event in record.events)
    assert counts["executor-ended"] == counts["run-ended"] == 1
    assert seen.ends == [state.value]
    for group in story.groups:
        check_attempt(group, seen, is_superseded=is_superseded and group is last)
    check_restarts(story, budgets)
    if is_superseded:
        assert (state, record.num_kept) == (RunState.STOPPED, 0)
        return "superseded"
    has_returned = bool(last.ranks) and not last.dead
    assert record.num_kept == has_returned
    notice = run.recorder.stop
    assert notice is not None or not story.is_warned
    assert story.is_warned or notice is None or notice.kind is not StopKind.PREEMPTION
    if state is RunState.FINISHED:
        assert (error, last.ranks[0].did[-1][0]) == (None, "came to its end")
    elif state is RunState.STOPPED:
        assert isinstance(error, RunStoppedError)
        assert notice is not None
        return "warned" if notice.kind is StopKind.PREEMPTION else "stopped"
    else:
        assert not has_returned
    return str(state.value)


def test_a_run_ends_once_and_rightly_in_whatever_order_things_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for module in (attempt_executor, executor, executor_record, stop):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(executor, "WorkerGroup", Group)
    # What is tried here is the order of things, and not the disk.
    monkeypatch.setattr(executor, "initial_status", lambda *_: STATUS)
    monkeypatch.setattr(executor_record, "read_status", lambda _: None)
    monkeypatch.setattr(executor_record, "read_events", lambda _: [])
    monkeypatch.setattr(executor_record, "Fence", lambda _: None)
    monkeypatch.setattr(Result, "from_path", no_files)
    monkeypatch.setattr(executor, "await_room", lambda *_, **__: None)
    monkeypatch.setattr(executor, "Recorder", lambda **kw: Recorder(**kw, record_cls=Record))
    monkeypatch.setattr(recorder, "write_return_value", keep)
    ends: Counter[str] = Counter()
    paths = RunPaths(tmp_path)
    for seed in range(ORDERS):
        try:
            ends[run_in_some_order(seed, paths, clock)] += 1
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # Or it would show nothing.
    words = ("failed", "stopped", "warned", "finished", "superseded")
    assert all(ends[word] > ORDERS // 50 for word in words), ends
