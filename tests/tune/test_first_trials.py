"""What is refused before a sweep begins, or goes on in another allocation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, tune
from hpctrain.tune.first_trials import check_first_trials
from hpctrain.tune.ledger import SweepPaths, SweepRecord
from hpctrain.tune.node_slots import NodeShare, NodeSlots
from hpctrain.tune.person_stops import mark_stopped
from hpctrain.tune.search import Searcher
from hpctrain.tune.source import ConfigSource, SearchSource, VariantSource
from hpctrain.tune.trial import Transfer, Trial, TrialState, name_trial
from hpctrain.tune.variants import Variants
from tests.tune.played import FakeRunner

SPACE = {"cpus": tune.grid_search([8, 2, 6, 1])}


class Runner(FakeRunner):
    """Prepares trials, too."""

    def prepare(self, trial: Trial) -> None:
        """Nothing is written."""


def variants() -> ConfigSource:
    return VariantSource(variants=Variants(space=SPACE, seed=0, num_samples=1))


def proposed() -> ConfigSource:
    class Proposes(Searcher):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            raise AssertionError("nothing is proposed before it is needed")

    return SearchSource(search=Proposes(), space={}, num_samples=4)


def record(*states: TrialState) -> SweepRecord:
    sizes = (8, 2, 6, 1)
    trials = {
        name_trial(i): Trial(trial_id=name_trial(i), config={"cpus": sizes[i]}, state=state)
        for i, state in enumerate(states)
    }
    return SweepRecord(started={}, trials=trials)


def check(
    source: ConfigSource, record: SweepRecord | None, *, cpus: int, root: str | Path = "/none"
) -> Trial | None:
    nodes = {"node1": NodeShare(cpus=cpus)}
    runner: Any = Runner()
    paths = SweepPaths(root=Path(root))
    return check_first_trials(source, runner, lambda: NodeSlots(nodes), record=record, paths=paths)


ENDED, PAUSED, PENDING = TrialState.TERMINATED, TrialState.PAUSED, TrialState.PENDING


@pytest.mark.parametrize("source", [variants, proposed])
def test_a_paused_trial_that_a_smaller_allocation_cannot_hold_is_refused_before_it_fails(
    source: Any,
) -> None:
    with pytest.raises(ConfigError, match=r"trial_00002 needs 1 worker with 6 CPUs .* larger all"):
        check(source(), record(ENDED, PENDING, PAUSED), cpus=4)


@pytest.mark.parametrize("source", [variants, proposed])
def test_trials_that_have_ended_need_no_room_in_the_next_job(source: Any) -> None:
    first = check(source(), record(ENDED, PAUSED, ENDED), cpus=4)
    assert first is not None
    assert first.trial_id == "trial_00001"


def test_the_refusal_says_how_the_sweep_goes_on_without_the_trial(tmp_path: Path) -> None:
    known = record(ENDED, PENDING, PAUSED)
    with pytest.raises(ConfigError) as caught:
        check(proposed(), known, cpus=4, root=tmp_path)
    command = f"hpctrain tune stop {tmp_path} trial_00002"
    assert str(caught.value).endswith(command)
    mark_stopped(SweepPaths(root=tmp_path), "trial_00002")
    first = check(proposed(), known, cpus=4, root=tmp_path)
    assert first is not None
    assert first.trial_id == "trial_00001"


def test_a_trial_that_was_not_made_yet_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="trial_00002 needs"):
        check(variants(), record(ENDED, PAUSED), cpus=4)


def test_trials_have_the_values_that_were_checked() -> None:
    numbers = itertools.count(1)
    space = {"cpus": tune.sample_from(lambda: next(numbers))}
    source = VariantSource(variants=Variants(space=space, seed=0, num_samples=3))
    first = check(source, None, cpus=3)
    assert first is not None
    assert [source.next(number, f"t{number}") for number in range(3)] == [
        {"cpus": 1},
        {"cpus": 2},
        {"cpus": 3},
    ]
    assert next(numbers) == 4


def test_a_function_that_fails_for_a_trial_is_named_with_the_trial() -> None:
    space = {"n": tune.grid_search([0, 1]), "cpus": tune.sample_from(lambda c: 1 // (1 - c["n"]))}
    source = VariantSource(variants=Variants(space=space, seed=0))
    message = r"trial_00001 has no configuration: sample_from\(\) of cpus failed: ZeroDivisionError"
    with pytest.raises(ConfigError, match=message):
        check(source, None, cpus=4)
    with pytest.raises(ConfigError, match=message):
        source.next(1, "trial_00001")


def test_a_trial_needs_what_it_is_to_go_on_with() -> None:
    found = record(ENDED, PAUSED)
    found.trials["trial_00001"].transfer = Transfer(
        number=1,
        time=0.0,
        donor="trial_00000",
        checkpoint="000001",
        iteration=1,
        seconds=1.0,
        config={"cpus": 5},
    )
    with pytest.raises(ConfigError, match="trial_00001 needs 1 worker with 5 CPUs"):
        check(proposed(), found, cpus=4)
