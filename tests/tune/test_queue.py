"""When trials are made: as late as what is proposed can learn from those before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain import tune
from hpctrain.tune.slots import Capacity, Slots
from tests.tune.played import FakeRunner, Script, make_sweep, states

_MACHINE = Capacity(cpus=32, gpus=("0",), mem_bytes=10)


class _Learning:
    """Notes how many trials have ended when it proposes one."""

    def __init__(self, proposed: Mapping[str, Any]) -> None:
        self.proposed = proposed
        self.known: list[int] = []
        self.ended = 0

    def suggest(self, trial_id: str) -> Mapping[str, Any]:
        self.known.append(self.ended)
        return {name: value(len(self.known)) for name, value in self.proposed.items()}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Learn from ends alone."""

    def on_trial_complete(self, trial_id: str, **result: Any) -> None:
        self.ended += 1


@pytest.mark.parametrize("need", [{"gpus": 1}, {"mem": 6}, {"cpus": 20}], ids=str)
def test_a_trial_is_proposed_once_there_is_a_slot_for_it(
    need: dict[str, int], tmp_path: Path
) -> None:
    search = _Learning({name: lambda _, value=value: value for name, value in need.items()})
    sweep = make_sweep(FakeRunner(), tmp_path, search=search, slots=Slots(_MACHINE))
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert search.known == [0, 1, 2, 3]


def test_a_proposal_that_needs_more_than_the_last_one_waits(tmp_path: Path) -> None:
    search = _Learning({"cpus": lambda number: 10 * number})
    runner = FakeRunner({"trial_00000": Script([1.0, 1.0, 1.0])})
    slots = Slots(Capacity(cpus=25))
    sweep = make_sweep(runner, tmp_path, num_samples=2, search=search, slots=slots)
    sweep.run()
    assert search.known == [0, 0]
    assert (runner.started, runner.most_at_work) == (["trial_00000", "trial_00001"], 1)
    assert states(sweep) == 2 * ["TERMINATED"]


def test_what_may_need_as_little_as_an_earlier_one_is_proposed_beside_a_large_one(
    tmp_path: Path,
) -> None:
    search = _Learning({"cpus": lambda number: 20 if number == 2 else 1})
    runner = FakeRunner({"trial_00001": Script([1.0] * 9)})
    slots = Slots(Capacity(cpus=21))
    sweep = make_sweep(runner, tmp_path, search=search, slots=slots)
    sweep.run()
    assert search.known == [0, 0, 1, 2]
    assert states(sweep) == 4 * ["TERMINATED"]


def test_a_variant_that_needs_less_than_the_last_one_does_not_wait(tmp_path: Path) -> None:
    runner = FakeRunner()
    space = {"cpus": tune.grid_search([20, 5])}
    slots = Slots(Capacity(cpus=25))
    sweep = make_sweep(runner, tmp_path, num_samples=1, space=space, slots=slots)
    sweep.run()
    assert runner.most_at_work == 2
    assert states(sweep) == 2 * ["TERMINATED"]


def test_a_proposal_that_the_allocation_does_not_hold_fails_alone(tmp_path: Path) -> None:
    search = _Learning({"cpus": lambda number: 9 if number == 2 else 1})
    slots = Slots(Capacity(cpus=8, allocated_cpus=8))
    sweep = make_sweep(FakeRunner(), tmp_path, search=search, slots=slots)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    reason = sweep.trials["trial_00001"].reason
    assert reason.startswith("trial_00001 needs 9 CPUs")
    assert "this allocation has 8" in reason


def test_a_proposal_that_is_refused_says_nothing_of_the_next_one(tmp_path: Path) -> None:
    def cpus(number: int) -> int:
        return 99 if number == 2 else 20

    search = _Learning({"cpus": cpus})
    runner = FakeRunner({"trial_00000": Script([1.0] * 3)})
    slots = Slots(Capacity(cpus=25, allocated_cpus=25))
    sweep = make_sweep(runner, tmp_path, search=search, slots=slots)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    # The second and the third are proposed once the first has ended.
    assert search.known == [0, 1, 2, 3]
