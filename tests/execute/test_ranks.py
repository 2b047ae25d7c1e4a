"""What the loop over an attempt may expect of ranks, however it reaches them.

The same cases run on ranks that hpctrain starts, with mpiexec or with srun beside agents, on ranks
that are there already, on a rank that is called, and on the fake that stands for all of these.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpctrain import timeouts
from hpctrain.backend import BackendConfig
from hpctrain.config import FailureConfig, RunConfig, ScalingConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import RunStoppedError, WorkerError
from hpctrain.execute import stop
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.attempt_start import AttemptStart
from hpctrain.execute.executor_record import UnwrittenRecord
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.launch import spmd
from hpctrain.launch.existing_ranks import ExistingRanks
from hpctrain.launch.inline_ranks import InlineChannel, InlineRanks, StopAtOnce
from hpctrain.plan import spec
from hpctrain.plan.resources import NodeShape, Placement, place_workers
from hpctrain.plan.spec import RankSettings, RunSpec, WorkerSpec
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.rundir.trust import digest_spec
from hpctrain.slurm_config import SlurmConfig
from hpctrain.testing.scripted_rank import ScriptedRanks
from hpctrain.worker.report import Session
from hpctrain.worker.train import pack_return_value, run_training
from hpctrain.world import SerialComm
from tests.waiting import wait_until
from tests.worlds import make_world

REPORTS = 3
LIMIT_S = 60


def make_train() -> Callable[[dict[str, Any]], str]:
    """Return a training function by value: ranks cannot import this module."""

    def train(config: dict[str, Any]) -> str:
        import itertools
        import os
        import signal
        import time

        import hpctrain

        is_last = hpctrain.get_context().get_world_rank() == config["size"] - 1
        then = config["then"] if is_last else "waits"
        for number in itertools.count() if config["then"] == "stops" else range(config["reports"]):
            hpctrain.report({"number": number})
            time.sleep(0.01)
            if hpctrain.should_stop():
                return "stopped"
        if then == "raises":
            raise ValueError("it raises")
        if then == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while config["then"] != "returns":
            time.sleep(0.01)
        return "value"

    return train


class Attempt(AttemptExecutor):
    """An attempt that keeps what ranks have sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frames: list[Frame] = []

    def take(self, frames: Iterable[Frame]) -> None:
        taken = list(frames)
        self.frames += taken
        super().take(taken)


class Home:
    """An attempt on ranks that are reached in some way."""

    size = 2
    fails_with: ClassVar[tuple[type[Exception], str]] = (
        WorkerError,
        rf"rank 1 of 2 on .* failed after report {REPORTS}: ValueError: it raises",
    )
    ranks: Any

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths

    def begin(self, then: str) -> None:
        """Let the last rank end so; the others wait for it."""
        self.then = then
        content = self._write_spec()
        self.start()
        self.attempt = Attempt(self.ranks, spec_digest=digest_spec(content))
        self.recorder = Recorder(
            paths=self.paths,
            run_config=RunConfig(name="run"),
            status=RunStatus(name="run", state=RunState.STARTING, launcher="local"),
            record_cls=UnwrittenRecord,
        )
        record = self.recorder.run_record
        record.begin()
        self.recorder.begin_attempt(None)
        record.advance(RunEvent.JOINED, world_size=self.size, nodes=("n",), phase="importing")
        self.loop = AttemptLoop(
            self.recorder,
            self.attempt,
            stopping=self.make_stopping(),
            failure_config=FailureConfig(),
            may_end_hangs=False,
            in_each_turn=self._ask,
        )

    def _write_spec(self) -> bytes:
        worker = WorkerSpec(
            train_loop=make_train(),
            train_loop_config={"then": self.then, "reports": REPORTS, "size": self.size},
            takes_config=True,
            backend_config=BackendConfig(),
        )
        settings = RankSettings(
            name="run",
            cwd=os.getcwd(),
            sys_path=(),
            cpus_per_worker=1,
            gpus_per_worker=0,
            commit_timeout_s=LIMIT_S,
        )
        self.spec = RunSpec(
            trainer="",
            backend="",
            fingerprint="",
            digests={},
            settings=settings,
            worker=spec.pack(worker, what="the training function"),
            executor=b"",
        )
        content = self.spec.to_bytes()
        self.paths.spec.write_bytes(content)
        self.paths.spec.chmod(0o600)
        return content

    def _ask(self) -> None:
        """Let the run stop: again and again, as a person does whose run does not end."""
        if self.then in ("stops", "hangs") and self.attempt.tracker.reports >= REPORTS:
            self.recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="a person asks"))

    def make_stopping(self) -> StopAgreement | StopAtOnce:
        def send_twice(op: str, **details: Any) -> None:
            for _ in range(2):
                self.ranks.broadcast(op, **details)

        return StopAgreement(self.recorder, self.attempt.tracker, send_twice)

    def start(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        self.attempt.start_training()
        self.loop.run()
        self.loop.conclude()

    def end(self) -> None:
        """End the ranks, in the way of this home: at once, if they have not returned."""
        self.ranks.shutdown(patience_s=5.0 if self.attempt.tracker.is_done else 0.0)

    def close(self) -> None:
        self.end()
        self.recorder.checkpoints.close()
        self.recorder.run_record.directory.close()

    def sent(self, rank: int) -> list[str]:
        """Return what a rank has sent of its training: the phases, and the other operations."""
        frames = [frame for frame in self.attempt.frames if frame.header["rank"] == rank]
        said = [f.header["phase"] if f.op == "phase" else f.op for f in frames]
        # Which frames these are depends on how a rank comes, and on whether it has peers.
        return [op for op in said if op not in ("hello", "returned", "heartbeat")]

    def numbers(self, rank: int) -> list[int]:
        frames = [f for f in self.attempt.frames if (f.op, f.header["rank"]) == ("report", rank)]
        return [json.loads(frame.body)["report"] for frame in frames]


class StartedHere(Home):
    """Ranks that mpiexec starts on this machine."""

    placement: Placement | None = None

    def start(self) -> None:
        self.ranks = WorkerGroup(
            self.size,
            placement=self.placement,
            in_allocation=self.placement is not None,
            path=self.paths.root,
        )
        self.ranks.start()


class StartedOnNodes(StartedHere):
    """Ranks that srun starts on two nodes, each of which has an agent."""

    placement = place_workers(ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)), NodeShape())


class ThereAlready(Home):
    """Ranks that somebody else has started; what is a thread of rank 0 there is in this process."""

    SCRIPT = """
import pickle, sys
from dataclasses import replace
from hpctrain.config import ScalingConfig
from hpctrain.launch import spmd

with open(sys.argv[1], "rb") as file:
    opening = pickle.load(file)
world, comm = spmd._join(ScalingConfig(num_workers=2))
spmd._run_rank(opening, replace(world, attempt=1), comm)
"""

    def start(self) -> None:
        self.ranks = ExistingRanks(
            self.paths, attempt=1, world=make_world(0, 2), on_complete=lambda nodes: None
        )
        opening = spmd._Opening(
            paths=self.paths,
            start=AttemptStart(attempt=1, first_report=0, checkpoint=None),
            content=self.spec.to_bytes(),
            coordinator=self.ranks.address,
        )
        path = self.paths.root / "opening"
        path.write_bytes(pickle.dumps(opening))
        mpiexec = Path(sys.executable).with_name("mpiexec")
        argv = [mpiexec, "-n", "2", sys.executable, "-c", self.SCRIPT, path]
        self.process = subprocess.Popen(argv)

    def run(self) -> None:
        self.loop.run()
        self.loop.conclude()

    def end(self) -> None:
        result = Result(path=self.paths.root, status=self.recorder.run_record.status, error=None)
        has_ended = self.attempt.tracker.is_done
        self.ranks.dismiss(
            "finished",
            spec.pack(result, what="the result"),
            patience_s=LIMIT_S if has_ended else 0.0,
        )
        if not has_ended:
            # They belong to whoever has started them.
            self.process.terminate()
        self.process.wait(LIMIT_S)


class Called(Home):
    """One rank, which this process calls."""

    size = 1
    fails_with = (ValueError, "^it raises$")

    def start(self) -> None:
        self.ranks = InlineRanks()

    def make_stopping(self) -> StopAtOnce:
        return StopAtOnce(self.recorder, self.attempt, self.ranks)

    def run(self) -> None:
        channel, world = InlineChannel(self.attempt, self.loop), make_world()
        self.ranks.session = session = Session(
            world=world,
            paths=self.paths,
            channel=channel,
            first_report=0,
            checkpoint=None,
            commit_timeout_s=LIMIT_S,
            in_background=False,
        )
        value = run_training(
            self.spec,
            paths=self.paths,
            session=session,
            comm=SerialComm(),
            on_phase=channel.enter,
        )
        channel.done(pack_return_value(world, value), notified=session.was_notified)
        self.loop.conclude()

    def end(self) -> None:
        """Do nothing: it has returned, or raised."""


class Fake(Home):
    """Ranks that are not there."""

    def start(self) -> None:
        steps = 10**6 if self.then == "stops" else REPORTS
        script = {"steps": steps, "asks_every": 1, "obeys": True, "saves": False}
        waits = {**script, "then": "returns" if self.then in ("returns", "stops") else "hangs"}
        last = script if self.then == "stops" else {**script, "then": self.then}
        self.ranks = ScriptedRanks([waits, last])


def resources() -> set[str]:
    """Return the descriptors, children and threads of this process."""
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may have ended since it was listed.
        with suppress(FileNotFoundError):
            children += (task / "children").read_text().split()
    return {
        *(f"descriptor {number}" for number in os.listdir("/proc/self/fd")),
        *(f"child {pid}" for pid in children),
        *(f"thread {thread.name}" for thread in threading.enumerate()),
    }


ALL = [
    pytest.param(StartedHere, marks=pytest.mark.mpi),
    pytest.param(StartedOnNodes, marks=pytest.mark.slurm),
    pytest.param(ThereAlready, marks=pytest.mark.mpi),
    Called,
    Fake,
]
WITH_PROCESSES = [home for home in ALL if home is not Called]


@pytest.fixture
def home(
    request: pytest.FixtureRequest, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Home]:
    """Begin no attempt yet; look that nothing is left of it."""
    if request.param is StartedOnNodes:
        request.getfixturevalue("allocation")
    before = resources()
    home: Home = request.param(paths)
    yield home
    home.close()
    wait_until(lambda: resources() <= before, lambda: f"left: {resources() - before}")


@pytest.fixture
def allocation(in_slurm: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be in an allocation of two nodes."""
    with subprocess.Popen(
        ["salloc", "--quiet", "-N2", "--ntasks-per-node=1", "sh", "-c", "env; echo; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as salloc:
        assert salloc.stdout is not None
        for line in iter(salloc.stdout.readline, "\n"):
            name, _, value = line.rstrip("\n").partition("=")
            if name.startswith("SLURM_"):
                monkeypatch.setenv(name, value)
        yield
        salloc.communicate("end\n", LIMIT_S)


@pytest.mark.parametrize("home", ALL, indirect=True)
def test_what_each_rank_sends_arrives_once_and_in_its_order(home: Home) -> None:
    home.begin("returns")
    home.run()
    assert len(home.ranks) == home.size
    for rank in range(home.size):
        assert home.sent(rank) == [
            "importing",
            "backend",
            "training",
            *["report"] * REPORTS,
            "shutdown",
            "done",
        ]
        assert home.numbers(rank) == [1, 2, 3]
    assert home.attempt.tracker.reports == REPORTS


@pytest.mark.parametrize("home", ALL, indirect=True)
def test_an_exception_of_a_rank_arrives_with_its_text(home: Home) -> None:
    home.begin("raises")
    error, message = home.fails_with
    with pytest.raises(error, match=message):
        home.run()
    assert home.numbers(home.size - 1) == [1, 2, 3], "what it sent before"


@pytest.mark.parametrize("home", WITH_PROCESSES, indirect=True)
def test_of_a_rank_that_dies_the_number_is_known(home: Home) -> None:
    home.begin("dies")
    with pytest.raises(
        WorkerError, match=r"rank 1 of 2 on .* failed without an exception"
    ) as raised:
        home.run()
    assert raised.value.rank == next(iter(home.attempt.tracker.lost)) == 1


@pytest.mark.parametrize("home", ALL, indirect=True)
def test_ranks_that_are_asked_to_stop_twice_return_after_the_same_report(home: Home) -> None:
    home.begin("stops")
    with pytest.raises(RunStoppedError, match="a person asks"):
        home.run()
    made = home.attempt.tracker.reports
    assert made >= REPORTS
    for rank in range(home.size):
        assert home.numbers(rank) == list(range(1, made + 1))
    assert home.attempt.tracker.was_notified


@pytest.mark.parametrize("home", WITH_PROCESSES, indirect=True)
def test_ranks_that_do_not_stop_are_ended_and_the_timeout_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = timeouts.Timeout(0.5, "stop_agreement", "ranks", "an error")
    monkeypatch.setattr(stop.timeouts, "STOP_AGREEMENT_S", patience)
    home.begin("hangs")
    with pytest.raises(RunStoppedError, match=r"within 0.5 s \(timeout stop_agreement\)"):
        home.run()


@pytest.mark.parametrize("home", ALL, indirect=True)
def test_ranks_end_twice_and_nothing_comes_from_them_any_more(home: Home) -> None:
    home.begin("returns")
    home.run()
    home.end()
    home.end()
    with suppress(ValueError):
        assert home.ranks.poll(0.0) == []
