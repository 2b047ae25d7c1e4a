"""The supervisor of a job, whose executor is a process that does what a test wants."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain.errors import SupersededError
from hpctrain.execute import supervisor
from hpctrain.execute.fence import Fence
from hpctrain.execute.ownership import Ownership
from hpctrain.execute.supervisor import supervise
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from tests.waiting import wait_until


class Executors:
    """What each executor does, and how many were started; they run in children."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.record = RunRecord(paths)
        self.acts: Callable[[int], int] = lambda number: 0
        """Gets the number of the executor, from 1; returns its exit status."""
        self._starts = paths.root.parent / "starts"

    @property
    def num_started(self) -> int:
        return len(self._starts.read_text()) if self._starts.exists() else 0

    def run(self, paths: RunPaths, spec_digest: str | None) -> int:
        assert spec_digest == "digest"
        with self._starts.open("a") as starts:
            starts.write("+")
        return self.acts(self.num_started)

    def end_run(self, state: RunState) -> None:
        self.record.write(RunStatus(name="run", state=state, launcher="slurm"))


def die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.fixture
def executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executors]:
    executors = Executors(RunPaths(tmp_path / "run"))
    executors.paths.root.mkdir()
    monkeypatch.setattr(supervisor, "_run_executor", executors.run)
    monkeypatch.setattr(supervisor, "await_ownership", lambda _: Ownership.MINE)
    before = {number: signal.getsignal(number) for number in supervisor._SIGNALS}
    yield executors
    for number, handler in before.items():
        signal.signal(number, handler)


def run(executors: Executors) -> None:
    supervise(str(executors.paths.root), "digest")


def events(executors: Executors) -> list[str]:
    return [event["event"] for event in read_events(executors.paths)]


def test_a_supervisor_does_not_import_what_an_executor_imports_while_its_ranks_start() -> None:
    program = "import hpctrain.execute.supervisor, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "hpctrain.execute.first_steps" in loaded, done.stderr
    heavy = ("execute.executor", "execute.worker_group", "config", "slurm.output", "plan.modules")
    # While srun says which types of PMI it has; where an executor has died.
    later = ("execute.node_agents", "control.hub", "rundir.status")
    assert loaded & {f"hpctrain.{name}" for name in (*heavy, *later)} == set()


def test_an_executor_that_ends_well_is_started_once(executors: Executors):
    run(executors)
    assert executors.num_started == 1
    assert events(executors) == []


def test_the_job_ends_with_the_exit_status_of_its_executor(executors: Executors):
    executors.acts = lambda number: 3
    with pytest.raises(SystemExit) as raised:
        run(executors)
    assert raised.value.code == 3
    assert executors.num_started == 1


def test_an_executor_that_a_signal_killed_is_started_again(executors: Executors):
    executors.acts = lambda number: die() if number == 1 else 0
    run(executors)
    assert executors.num_started == 2
    (died,) = read_events(executors.paths)
    assert (died["event"], died["signal"]) == ("executor-died", signal.SIGKILL)


def test_executors_that_begin_no_attempt_are_not_started_for_ever(executors: Executors):
    executors.acts = lambda number: die()
    with pytest.raises(SystemExit) as raised:
        run(executors)
    assert raised.value.code == 1
    assert executors.num_started == 4
    assert events(executors) == ["executor-died"] * 4


def test_an_executor_that_has_begun_an_attempt_does_not_count(executors: Executors):
    def act(number: int) -> int:
        if number == 7:
            return 0
        executors.record.append("attempt-started", attempt=number)
        return die()

    executors.acts = act
    run(executors)
    assert executors.num_started == 7


@pytest.mark.parametrize(("state", "code"), [(RunState.FINISHED, None), (RunState.FAILED, 1)])
def test_a_run_that_had_ended_when_its_executor_died_is_not_begun_again(
    executors: Executors, state: RunState, code: int | None
):
    def act(number: int) -> int:
        executors.end_run(state)
        return die()

    executors.acts = act
    if code is None:
        run(executors)
    else:
        with pytest.raises(SystemExit) as raised:
            run(executors)
        assert raised.value.code == code
    assert executors.num_started == 1


def test_a_run_that_another_executor_has_taken_over_is_left_to_it(
    executors: Executors, capsys: pytest.CaptureFixture[str]
):
    def act(number: int) -> int:
        # As if another process had: this one's number is that of the dead child.
        Fence(executors.paths).take(executors.paths)
        mark = next(executors.paths.root.glob(".executor-*"))
        mark.write_text('{"host": "elsewhere", "pid": 1, "start": 1, "job_id": null}')
        return die()

    executors.acts = act
    with pytest.raises(SystemExit) as raised:
        run(executors)
    assert raised.value.code == SupersededError("").exit_code
    assert executors.num_started == 1
    assert events(executors) == []
    assert "another executor has taken over run 'run'" in capsys.readouterr().err


def test_a_run_directory_that_is_gone_ends_it(
    executors: Executors, capsys: pytest.CaptureFixture[str]
):
    def act(number: int) -> int:
        executors.paths.root.rename(executors.paths.root.with_name("moved"))
        return die()

    executors.acts = act
    with pytest.raises(SystemExit) as raised:
        run(executors)
    assert raised.value.code == 1
    assert executors.num_started == 1
    assert "run" in capsys.readouterr().err


@pytest.mark.parametrize("owner", [Ownership.OTHERS, Ownership.OVER])
def test_a_job_that_does_not_own_the_run_starts_nothing(
    executors: Executors,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Ownership,
):
    monkeypatch.setattr(supervisor, "await_ownership", lambda _: owner)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run(executors)
    assert executors.num_started == 0
    assert f"is run by {owner.value}, not by job 7" in capsys.readouterr().out


def test_signals_of_slurm_are_left_to_the_executor(executors: Executors):
    def act(number: int) -> int:
        for name in supervisor._SIGNALS:
            os.kill(os.getppid(), name)
        return 0

    executors.acts = act
    run(executors)


def test_what_the_next_executor_needs_is_imported_while_this_one_runs(
    executors: Executors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    imported = tmp_path / "imported"
    monkeypatch.setattr(supervisor, "_CALM_S", 0.0)
    monkeypatch.setattr(importlib, "import_module", imported.write_text)

    def act(number: int) -> int:
        wait_until(imported.exists, "the import", timeout_s=60.0)
        return 0

    executors.acts = act
    run(executors)
    assert imported.read_text() == "hpctrain.execute.stored_executor"
