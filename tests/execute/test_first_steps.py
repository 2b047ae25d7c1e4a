"""What an executor starts before it has imported itself, and where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.execute import executor, first_steps, node_agents, step_launcher
from hpctrain.execute.first_steps import FirstSteps, begin_first_steps
from hpctrain.execute.health import Health
from hpctrain.execute.rank_step import RankStep
from hpctrain.execute.stored_executor import open_executor
from hpctrain.plan import spec
from hpctrain.plan.launch_plan import FirstStart, LaunchPlan
from hpctrain.plan.resources import NodeShape, node_range, place_workers
from hpctrain.plan.spec import RunSpec
from hpctrain.result import Result
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.fake_ranks import FakeRanks
from hpctrain.testing.slurm import VirtualCluster
from tests.plans import SETTINGS, make_plan


class Step:
    """What starts ranks, as far as it is ended."""

    was_killed = False

    def kill(self) -> None:
        self.was_killed = True


class Agents:
    """Agents that only say what was asked of them."""

    def __init__(self, paths: RunPaths, *, node_timeout_s: float) -> None:
        self.socket = "socket"
        self.acts: list[Any] = [node_timeout_s]

    def gather(self, placement: Any, idle_nodes: Any, *, attempt: int) -> None:
        self.acts.append(attempt)

    def close(self, patience_s: float = 0.0) -> None:
        self.acts.append("closed")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "run").mkdir()
    return RunPaths(tmp_path / "run")


@pytest.fixture
def begin(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> Callable[[LaunchPlan | None], FirstSteps | None]:
    monkeypatch.setattr(node_agents, "NodeAgents", Agents)
    monkeypatch.setattr(step_launcher, "find_step_launcher", lambda mpi: mpi)
    monkeypatch.setattr(first_steps, "ask_for_pmi_types", lambda: None)
    monkeypatch.setattr(RankStep, "start", lambda *_, **__: Step())

    def begin(plan: LaunchPlan | None) -> FirstSteps | None:
        return begin_first_steps(paths, make_spec(plan))

    return begin


class Group(FakeRanks):
    """A group whose ranks do not come."""

    missing_nodes = ()

    def __init__(self, *, placement: Any, **_: Any) -> None:
        super().__init__(placement.num_workers)
        self.health = Health()

    def start(self, timeout_s: float, **_: Any) -> None:
        raise LaunchError("no rank has come")

    def shutdown(self, patience_s: float) -> None:
        pass


def make_spec(plan: LaunchPlan | None) -> RunSpec:
    first = b""
    if plan is not None:
        start = FirstStart(plan=plan, log_to_file=True, node_timeout_s=7.0, own_places=())
        first = spec.pack(start, what="the plan")
    return RunSpec(
        trainer="",
        backend="",
        fingerprint="",
        digests={},
        settings=SETTINGS,
        worker=b"",
        executor=b"",
        first_start=first,
    )


def uneven(plan: LaunchPlan) -> LaunchPlan:
    return replace(plan, placement=replace(plan.placement, tasks_per_node=(2, 1)))


def elastic(plan: LaunchPlan) -> LaunchPlan:
    scaling = ScalingConfig(num_workers=(1, 4))
    placement = place_workers(scaling, NodeShape(cpus=2, gpus=0))
    return replace(plan, placement=placement, job_nodes=node_range(scaling, placement))


def test_agents_and_ranks_of_the_first_attempt_are_started(begin: Any, paths: RunPaths) -> None:
    steps = begin(make_plan("slurm"))
    assert steps.agents.acts == [7.0, 1]
    assert paths.logs(1).is_dir()
    step = steps.take(1)
    assert step is not None
    steps.close()
    assert not step.was_killed, "it is the attempt's"
    assert steps.take(1) is None


@pytest.mark.parametrize("attempt", [None, 2])
def test_ranks_that_are_of_no_use_are_ended(begin: Any, attempt: int | None) -> None:
    steps = begin(make_plan("slurm"))
    step = steps._ranks
    if attempt is None:
        steps.abandon()
        assert steps.agents.acts[-1] == "closed"
    else:
        assert steps.take(attempt) is None
    assert step.was_killed


def test_agents_that_may_have_given_their_executor_up_are_not_taken(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    steps = begin(make_plan("slurm"))
    step = steps._ranks
    clock[0] += timeouts.EXECUTOR_CONNECTION_S - 1.0
    assert steps.take(1) is None
    assert step.was_killed
    assert steps.agents.acts[-1] == "closed"


def test_agents_of_an_attempt_that_runs_are_left_to_it_however_long_it_takes(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    steps = begin(make_plan("slurm"))
    assert steps.take(1) is not None
    clock[0] += 10 * timeouts.EXECUTOR_CONNECTION_S
    assert steps.take(2) is None
    assert "closed" not in steps.agents.acts


def test_the_run_says_why_ranks_that_started_first_were_not_forked(
    begin: Any, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "ranks share a CPU"

    def start(step: RankStep, *_: Any) -> Step:
        assert step.fork_server is not None
        step.fork_server.note([reason])
        return Step()

    monkeypatch.setattr(RankStep, "start", start)
    monkeypatch.setattr(executor, "WorkerGroup", Group)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    plan = make_plan("slurm")
    made = make_spec(plan)
    run_spec = replace(
        made,
        settings=replace(made.settings, preload=("wave",)),
        executor=spec.pack((RunConfig(name="run"), plan, None), what="the plan"),
    )
    steps = begin_first_steps(paths, run_spec)
    with pytest.raises(LaunchError, match="no rank has come"):
        open_executor(paths, b"", run_spec, first_steps=steps).run()
    noted = [e["reason"] for e in read_events(paths) if e["event"] == "not-forked"]
    assert noted == [reason]


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: make_plan("allocation"),
        lambda: uneven(make_plan("slurm")),
        lambda: elastic(make_plan("slurm")),
        lambda: replace(make_plan("slurm"), is_slice=True),
        lambda: replace(make_plan("slurm"), container="image"),
    ],
    ids=["an older spec", "allocation", "uneven", "elastic", "slice", "container"],
)
def test_what_is_looked_at_before_is_not_started_yet(begin: Any, make: Any) -> None:
    assert begin(make()) is None


def test_an_executor_that_follows_another_reads_first_what_became_of_it(
    begin: Any, paths: RunPaths
) -> None:
    append_event(paths, "executor-started", number=1)
    assert begin(make_plan("slurm")) is None


def test_a_run_that_is_to_stop_is_not_started(begin: Any, paths: RunPaths) -> None:
    paths.stop_request.touch()
    assert begin(make_plan("slurm")) is None


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("rank_step.RankStep.start", LaunchError("no srun")),
        ("step_launcher.find_step_launcher", ConfigError("there is no such program")),
        ("step_launcher.find_step_launcher", subprocess.TimeoutExpired("mpiexec", 10.0)),
        ("first_steps.make_directory", OSError("the disk is full")),
    ],
)
def test_what_cannot_be_started_is_left_to_the_executor_to_explain(
    begin: Any, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    closed: list[Any] = []

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    def close(agents: Agents, patience_s: float = 0.0) -> None:
        closed.append(agents)
        raise LaunchError("scancel does not answer")

    monkeypatch.setattr(f"hpctrain.execute.{where}", refuse)
    monkeypatch.setattr(Agents, "close", close)
    assert begin(make_plan("slurm")) is None
    assert len(closed) == 1


def test_an_hpctrain_that_cannot_read_the_start_of_another_leaves_it_to_the_executor(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    run_spec = replace(make_spec(None), first_start=b"of another hpctrain")
    assert begin_first_steps(paths, run_spec) is None
    assert "start later, with their executor" in capsys.readouterr().err


def test_agents_that_cannot_be_asked_for_leave_no_secret_behind(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", "many")
    assert begin_first_steps(paths, make_spec(make_plan("slurm"))) is None
    assert list(paths.root.glob(".secret-*")) == []


CALLBACK = """
import glob, os, time
from hpctrain import UserCallback

if "SLURM_JOB_ID" in os.environ:
    # The executor imports this module, to open its configuration.
    deadline = time.monotonic() + 60
    while not glob.glob(os.environ["STORAGE"] + "/run/logs/1/launcher.out"):
        assert time.monotonic() < deadline, "ranks wait for the configuration"
        time.sleep(0.02)

class Waits(UserCallback):
    pass
"""
SCRIPT = """
import os
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from waits import Waits

def train():
    world = hpctrain.get_context().world
    return [world.attempt, world.num_nodes]

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(tasks_per_node=1)),
        run_config=RunConfig(
            name="run", storage_path=os.environ["STORAGE"], callbacks=[Waits()], verbose=0
        ),
    ).fit()
"""


@pytest.mark.slurm
def test_ranks_of_a_job_start_before_the_configuration_is_opened(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(CALLBACK)
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        virtual_slurm.login_command([sys.executable, "train.py"], cwd=tmp_path),
        env={
            **os.environ,
            **virtual_slurm.environ,
            "PATH": f"{virtual_slurm.environ['PATH']}:{os.environ['PATH']}",
            "HPCTRAIN_LAUNCHER": "slurm",
            "STORAGE": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert Result.from_path(tmp_path / "run").return_value == [1, 2]
