"""Which ranks that wait are those of the next attempt."""

from __future__ import annotations

import errno
import functools
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hpctrain.config import FailureConfig
from hpctrain.control.hub import Hub
from hpctrain.errors import LaunchError
from hpctrain.execute import spare_ranks
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.process import StepProcess
from hpctrain.execute.spare_ranks import SpareRanks, may_restart, spare_ranks_for
from hpctrain.own_time import Deadline
from hpctrain.rundir.history import FailureKind, History
from hpctrain.rundir.paths import RunPaths
from hpctrain.timeouts import Timeout
from hpctrain.worker.import_stamps import ImportStamps
from tests.plans import make_plan


class FakeStep:
    """What has started ranks."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.status: int | None = None
        self.was_killed = threading.Event()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()

    def returncode(self) -> int | None:
        return self.status

    def last_lines(self, count: int = 12) -> str:
        return "\n".join(self.log.read_text().splitlines()[-count:])

    def kill(self) -> None:
        self.was_killed.set()


class Spare:
    """Ranks that wait, and what is around them."""

    def __init__(self, folder: Path, *, allowed: bool = True) -> None:
        self.ranks = SpareRanks(lambda: allowed)
        self.paths, self.attempt = RunPaths(folder), 1
        self.steps: list[FakeStep] = []
        self.refusal: Exception | None = None
        self.waiting: int | None = 4
        self.stamps = b""

    def settle(self) -> None:
        self.ranks.note_progress()
        self.ranks.prepare((self.attempt + 1, "auto"), self._start)

    def _start(self, name: str) -> StepProcess:
        if self.refusal is not None:
            raise self.refusal
        self.steps.append(FakeStep(self.paths.spare_log(self.attempt)))
        return cast("StepProcess", self.steps[-1])

    def take(self, mpi: str = "auto", *, skipped: int = 0) -> FakeStep | None:
        self.attempt += 1 + skipped
        log = self.paths.launcher_log(self.attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        found = None if self.waiting is None else [self.stamps, *[b""] * 3][: self.waiting]
        taken = self.ranks.take((self.attempt, mpi), size=4, log=log, find=lambda name: found)
        return cast("FakeStep | None", taken)


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spare:
    monkeypatch.setattr(SpareRanks, "settle_s", 0.0)
    return Spare(tmp_path)


def test_ranks_that_have_come_are_those_of_the_next_attempt(spare: Spare) -> None:
    spare.settle()
    (step,) = spare.steps
    step.log.write_text("printed by a prolog\n")
    assert spare.take() is step
    assert spare.ranks.is_taken
    assert step.log == spare.paths.launcher_log(2)
    assert step.log.read_text() == "printed by a prolog\n"
    assert not spare.paths.spare_log(1).exists()
    # An attempt has them once.
    assert spare.take() is None
    assert not spare.ranks.is_taken
    assert not step.was_killed.is_set()


def test_none_are_started_before_ranks_have_settled_and_once_an_attempt(
    spare: Spare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpareRanks, "settle_s", 1e6)
    spare.settle()
    assert spare.steps == []
    assert spare.take() is None
    monkeypatch.setattr(SpareRanks, "settle_s", 0.0)
    for _ in range(2):
        spare.settle()
    assert len(spare.steps) == 1


def test_none_are_started_where_the_budget_allows_no_restart(tmp_path: Path) -> None:
    spare = Spare(tmp_path, allowed=False)
    spare.ranks.settle_s = 0.0
    spare.settle()
    assert spare.steps == []


@pytest.mark.parametrize(
    ("start", "waiting"),
    [
        # The same for another layout.
        ({"mpi": "wheel"}, 4),
        ({"skipped": 1}, 4),
        # A node is lost, or its agent.
        ({}, None),
    ],
)
def test_ranks_of_another_start_leave_without_a_word(
    spare: Spare, capsys: pytest.CaptureFixture[str], start: Any, waiting: int | None
) -> None:
    spare.settle()
    spare.waiting = waiting
    assert spare.take(**start) is None
    (step,) = spare.steps
    assert step.was_killed.wait(10)
    assert not step.log.exists()
    assert not spare.ranks.is_taken
    assert capsys.readouterr().err == ""


def test_packages_that_were_installed_meanwhile_are_imported_anew(
    spare: Spare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(spare_ranks, "_package_places", lambda: [str(packages)])
    monkeypatch.setattr(spare_ranks, "stamp", lambda path: len([*Path(path).iterdir()]))
    spare.settle()
    (packages / "torch").mkdir()
    assert spare.take() is None


def test_what_was_edited_while_ranks_waited_is_imported_anew(spare: Spare, tmp_path: Path) -> None:
    module = tmp_path / "imported.py"
    module.touch()
    for is_edited in (False, True):
        spare.settle()
        spare.stamps = json.dumps(ImportStamps(()).after([str(module)])).encode()
        if is_edited:
            os.utime(module, ns=(1, 1))
        assert (spare.take() is None) is is_edited


def test_a_step_that_has_ended_is_named_with_its_last_words(
    spare: Spare, capsys: pytest.CaptureFixture[str]
) -> None:
    spare.settle()
    (step,) = spare.steps
    step.status = 1
    step.log.write_text("srun: first\nsrun: error: Unable to create step\n")
    assert spare.take() is None
    assert "their step has ended: srun: error: Unable to create step" in capsys.readouterr().err


def test_a_step_for_which_the_allocation_has_no_room_is_named_and_is_not_waited_for(
    spare: Spare, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"
    spare.waiting = 0
    for number in range(1, 4):
        spare.settle()
        spare.steps[-1].log.write_text(f"{busy}\n")
        assert spare.take() is None
        assert spare.steps[-1].was_killed.wait(10)
        printed = capsys.readouterr().err
        assert f"0 of 4 have come: {busy}" in printed
        assert ("3 steps in a row could not be used" in printed) == (number == 3)
    spare.settle()
    assert len(spare.steps) == 3


def test_ranks_that_are_on_their_way_are_waited_for_but_not_for_ever(
    spare: Spare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spare.waiting = 1
    spare.settle()
    assert spare.take() is spare.steps[0]
    over = Timeout(0.0, "spare_ranks", "ranks", "a new step")
    monkeypatch.setattr("hpctrain.timeouts.SPARE_RANKS_S", over)
    spare.settle()
    assert spare.take() is None
    assert "1 of 4 have come after 0 s (timeout spare_ranks)" in capsys.readouterr().err


def test_the_limit_of_ranks_on_their_way_passes_while_nobody_looks(
    spare: Spare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    clocked = functools.partial(Deadline, clock=lambda: now[0])
    monkeypatch.setattr("hpctrain.execute.spare_ranks.Deadline", clocked)
    spare.waiting = 1
    spare.settle()
    now[0] = 29.0
    assert spare.take() is spare.steps[0]
    spare.settle()
    now[0] += 31.0
    assert spare.take() is None
    assert "1 of 4 have come after 30 s (timeout spare_ranks)" in capsys.readouterr().err


def test_a_step_that_cannot_be_started_is_not_tried_again(
    spare: Spare, capsys: pytest.CaptureFixture[str]
) -> None:
    spare.refusal = LaunchError("cannot start srun: no such file")
    spare.settle()
    assert "cannot start srun: no such file" in capsys.readouterr().err
    spare.refusal = None
    assert spare.take() is None
    spare.settle()
    assert spare.steps == []


@pytest.mark.parametrize(
    "refusal",
    [
        LaunchError("srun: error: Unable to confirm allocation", transient=True),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_step_that_cannot_be_started_for_the_moment_is_tried_again(
    spare: Spare, refusal: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        spare.refusal = refusal
        spare.settle()
        assert str(refusal) in capsys.readouterr().err
        assert spare.take() is None
    spare.refusal = None
    spare.settle()
    assert len(spare.steps) == 1


def test_steps_that_can_never_be_started_are_given_up(
    spare: Spare, capsys: pytest.CaptureFixture[str]
) -> None:
    spare.refusal = LaunchError("the controller does not answer", transient=True)
    for _ in range(3):
        spare.settle()
        assert spare.take() is None
    assert "3 steps in a row could not be used" in capsys.readouterr().err
    spare.refusal = None
    spare.settle()
    assert spare.steps == []


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"launcher": "allocation"}, True),
        ({"launcher": "slurm"}, True),
        ({"launcher": "local"}, False),
        ({"launcher": "allocation", "is_slice": True}, False),
    ],
)
def test_ranks_wait_in_jobs(fields: dict[str, Any], waits: bool) -> None:
    plan = replace(make_plan("slurm"), **fields)
    found = spare_ranks_for(plan, FailureConfig(max_failures=1), History)
    assert (found is not None) == waits


def test_ranks_that_import_for_themselves_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_FORK_SERVER", "0")
    plan = make_plan("allocation")
    assert spare_ranks_for(plan, FailureConfig(max_failures=1), History) is None


@pytest.mark.parametrize(
    ("had", "most", "may"), [(0, 0, False), (0, 1, True), (1, 1, False), (9, -1, True)]
)
def test_ranks_may_start_again_as_often_as_their_budget_says(
    had: int, most: int, may: bool
) -> None:
    history = History(failures={FailureKind.WORKER: had})
    assert may_restart(history, FailureConfig(max_failures=most)) is may


def test_ranks_that_waited_and_do_not_join_are_the_last_that_wait(
    tmp_path: Path, spare: Spare, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = NodeAgents(RunPaths(tmp_path))
    agents.spare = spare.ranks
    agents.give_slot_up("of a step that was new")
    assert not agents.failed_in_slot
    spare.settle()
    spare.take()
    agents.give_slot_up("2 of 4 ranks joined")
    # The next start has the MPI of the plan.
    assert agents.failed_in_slot
    assert "2 of 4 ranks joined" in capsys.readouterr().err
    assert spare.take() is None
    spare.settle()
    assert len(spare.steps) == 1


def test_ranks_leave_with_the_agents_that_they_wait_at(tmp_path: Path, spare: Spare) -> None:
    agents = NodeAgents(RunPaths(tmp_path))
    agents.spare = spare.ranks
    spare.settle()
    agents.close()
    (step,) = spare.steps
    assert not step.was_killed.is_set()
    agents._hub = Hub(attempt=1)
    agents.close()
    assert step.was_killed.wait(10)
