"""Population Based Training decides as Ray Tune's does: see record_ray.py."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, tune
from hpctrain.tune.schedulers import Exploit, PopulationBasedTraining
from hpctrain.tune.schedulers.explore import explore
from tests.tune.played_population import Population

RECORDED = json.loads((Path(__file__).parent / "recorded/ray.json").read_text())["pbt"]


class WithOneGenerator(PopulationBasedTraining):
    """Draws everything from one generator, as Ray Tune does."""

    one = random.Random(0)

    def _rng_of(self, trial_id: str, when: float) -> random.Random:
        return self.one


def make(population: Population, **options: Any) -> PopulationBasedTraining:
    given = {"time_attr": "training_iteration", "metric": "m", "mode": "max", **options}
    if "custom_explore_fn" not in given:
        given.setdefault("hyperparam_mutations", {"lr": tune.uniform(0, 1)})
    scheduler = PopulationBasedTraining(**given)
    scheduler.set_population(population)
    for name in population.configs:
        scheduler.on_trial_add(name)
    return scheduler


def report(
    scheduler: PopulationBasedTraining, name: str, when: float, value: float
) -> tuple[str, list[Exploit]]:
    decision = scheduler.on_result(name, {"training_iteration": when, "m": value})
    return decision, list(scheduler.take_exploits())


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_exploits_pauses_and_new_configurations_are_those_of_ray_tune(number: int) -> None:
    recorded = RECORDED[number]
    rng = random.Random(recorded["seed"])
    options = {**recorded["options"]}
    if "custom_explore_fn" in options:
        options["custom_explore_fn"] = lambda config: {**config, "lr": min(config["lr"], 0.05)}
    population = Population(dict(recorded["configs"]), set(recorded["unsaved"]))
    scheduler = WithOneGenerator(
        time_attr="training_iteration",
        metric="m",
        mode=recorded["mode"],
        synch=recorded["synch"],
        hyperparam_mutations={
            "lr": lambda: rng.uniform(1e-4, 1e-1),
            "size": [16, 32, 64, 128],
            "nested": {"momentum": lambda: rng.uniform(0.5, 0.99), "depth": [1, 2, 3]},
            "steps": lambda: rng.randint(1, 100),
            "flag": lambda: rng.random() < 0.5,
        },
        **options,
    )
    scheduler.one = rng
    scheduler.set_population(population)
    for name in population.configs:
        scheduler.on_trial_add(name)
    waiting = list(population.configs)
    for chosen, (name, when, value), decision, moved in recorded["steps"]:
        for expected in chosen:
            assert scheduler.choose(waiting) == expected
            waiting = [each for each in waiting if each != expected]
        if decision == "COMPLETE":
            scheduler.on_complete(name, {"training_iteration": when, "m": value})
            scheduler.on_remove(name)
            continue
        found, exploits = report(scheduler, name, when, value)
        assert found == decision
        assert [[e.trial_id, e.donor, e.config] for e in exploits] == moved
        for exploit in exploits:
            population.configs[exploit.trial_id] = exploit.config
        if recorded["synch"] and decision == "PAUSE":
            waiting = [each for each in recorded["configs"] if each in {*waiting, name}]


def test_what_was_recorded_has_exploits_in_both_modes_and_pauses() -> None:
    for synch in (False, True):
        steps = [step for each in RECORDED if each["synch"] is synch for step in each["steps"]]
        assert sum(len(moved) for *_, moved in steps) > 50
        assert {"CONTINUE", "PAUSE"} <= {decision for _, _, decision, _ in steps}


def test_the_worst_goes_on_as_the_best_with_another_configuration() -> None:
    population = Population({"a": {"lr": 0.1}, "b": {"lr": 0.4}})
    scheduler = make(population, perturbation_interval=2, resample_probability=0)
    assert report(scheduler, "b", 1, 5) == ("CONTINUE", [])
    assert report(scheduler, "b", 2, 5) == ("CONTINUE", []), "there is nothing to compare with"
    assert report(scheduler, "a", 2, 1) == ("CONTINUE", []), "b was alone when it came"
    assert report(scheduler, "b", 4, 5) == ("CONTINUE", [])
    decision, (exploit,) = report(scheduler, "a", 4, 1)
    assert (decision, exploit.donor) == ("PAUSE", "b")
    assert exploit.config["lr"] in (0.4 * 1.2, 0.4 * 0.8)


def test_one_that_was_not_among_the_best_when_it_came_is_no_donor() -> None:
    population = Population({name: {"lr": 0.1} for name in "abc"})
    scheduler = make(population, perturbation_interval=1)
    report(scheduler, "a", 1, 5)
    report(scheduler, "b", 1, 1)
    # a is the best by now, and was alone when it came.
    assert report(scheduler, "c", 1, 0) == ("CONTINUE", [])
    report(scheduler, "a", 2, 5)
    decision, (exploit,) = report(scheduler, "c", 2, 0)
    assert (decision, exploit.donor) == ("PAUSE", "a")


def test_a_trial_yields_its_slot_while_others_wait_and_the_least_trained_goes_on() -> None:
    population = Population({name: {"lr": 0.1} for name in "abc"}, waits=True)
    scheduler = make(population, perturbation_interval=2)
    assert report(scheduler, "a", 1, 1)[0] == "CONTINUE"
    assert report(scheduler, "a", 2, 1)[0] == "PAUSE"
    assert scheduler.choose(["a", "b", "c"]) == "b"
    report(scheduler, "b", 3, 0)
    report(scheduler, "c", 4, 0.5)
    assert scheduler.choose(["b", "c"]) == "b"
    assert scheduler.choose(["a", "b", "c"]) == "a"


def test_in_step_nobody_waits_for_a_trial_that_has_ended_or_whose_time_is_far_ahead() -> None:
    population = Population({name: {"lr": 0.1} for name in "abc"})
    scheduler = make(population, perturbation_interval=2, synch=True)
    assert report(scheduler, "a", 7, 1) == ("PAUSE", [])
    assert report(scheduler, "b", 7, 2) == ("PAUSE", [])
    assert scheduler.choose(["a", "b"]) is None, "c has not come"
    scheduler.on_remove("c")
    (exploit,) = scheduler.take_exploits()
    assert (exploit.trial_id, exploit.donor) == ("a", "b")
    assert scheduler.choose(["a", "b"]) == "a", "all are further than the next interval"


def test_in_step_trials_that_are_not_made_yet_are_waited_for() -> None:
    population = Population({name: {"lr": 0.1} for name in "ab"}, is_complete=False)
    scheduler = make(population, perturbation_interval=1, synch=True)
    report(scheduler, "a", 1, 1)
    assert report(scheduler, "b", 1, 2) == ("PAUSE", [])
    population.is_complete = True
    population.configs["c"] = {"lr": 0.2}
    scheduler.on_trial_add("c")
    _, exploits = report(scheduler, "c", 1, 3)
    assert [exploit.trial_id for exploit in exploits] == ["a"]


def test_a_replay_and_the_transfers_that_were_lead_to_the_same_decisions() -> None:
    def start() -> PopulationBasedTraining:
        population = Population({name: {"lr": 0.1} for name in "abcd"})
        return make(population, perturbation_interval=2, seed=3)

    rng = random.Random(5)
    reports = [(name, when, rng.random()) for when in range(1, 30) for name in "abcd"]
    first, second = start(), start()
    decided = [report(first, *each) for each in reports]
    assert sum(len(exploits) for _, exploits in decided) > 5
    second.is_replaying = True
    for each, (_, exploits) in zip(reports[:60], decided, strict=False):
        assert report(second, *each)[1] == []
        for exploit in exploits:
            second.on_exploit(exploit)
    second.is_replaying = False
    assert [report(second, *each) for each in reports[60:]] == decided[60:]


def test_nan_is_the_worst() -> None:
    population = Population({name: {"lr": 0.1} for name in "ab"})
    scheduler = make(population, perturbation_interval=1)
    report(scheduler, "a", 1, -9)
    report(scheduler, "b", 1, math.nan)
    report(scheduler, "a", 2, -9)
    _, (exploit,) = report(scheduler, "b", 2, math.nan)
    assert exploit.donor == "a"


def test_what_is_drawn_is_in_its_domain_and_what_is_moved_is_a_neighbour(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    values = [1, 2, 4, 8]
    mutations = {
        "x": tune.uniform(0, 1),
        "n": tune.randint(1, 9),
        "a": {"list": values, "choice": tune.choice([3.0, 5.0])},
    }

    def check(rng: np.random.Generator) -> None:
        config = {
            "x": float(rng.uniform()),
            "n": int(rng.integers(1, 9)),
            "a": {"list": values[rng.integers(4)], "choice": 3.0, "kept": [1]},
            "kept": "text",
        }
        before = json.dumps(config)
        resample = float(rng.choice([0.0, 0.5, 1.0]))
        found = explore(
            config,
            mutations,
            resample_probability=resample,
            factors=(1.2, 0.8),
            custom=None,
            rng=random.Random(int(rng.integers(2**40))),
        )
        assert json.dumps(config) == before, "it is the other trial's"
        assert found["kept"] == "text"
        assert found["a"]["kept"] == [1]
        assert found["a"]["kept"] is not config["a"]["kept"]
        moved = {config["x"] * 1.2, config["x"] * 0.8}
        assert type(found["n"]) is int
        if resample == 0:
            assert found["x"] in moved
            old = values.index(config["a"]["list"])
            assert abs(values.index(found["a"]["list"]) - old) <= 1
        if resample == 1:
            assert 0 <= found["x"] <= 1
            assert 1 <= found["n"] < 9
            assert found["a"]["choice"] in (3.0, 5.0)
        assert found["a"]["list"] in values

    each_example(check)


def _explored(config: dict[str, Any], mutations: dict[str, Any], custom: Any = None) -> Any:
    return explore(
        config,
        mutations,
        resample_probability=0.0,
        factors=(1.2, 0.8),
        custom=custom,
        rng=random.Random(0),
    )


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.float32, np.float64, int])
def test_numbers_of_numpy_are_drawn_and_moved_as_those_of_python(kind: Any) -> None:
    mutations = {"size": lambda: kind(50)}
    drawn = explore(
        {"size": 10},
        mutations,
        resample_probability=1.0,
        factors=(1.2,),
        custom=None,
        rng=random.Random(0),
    )
    assert (drawn, type(drawn["size"])) == ({"size": 50}, int)
    moved = _explored({"size": kind(50)}, mutations)
    assert moved["size"] in (40, 60)
    assert type(moved["size"]) is (int if issubclass(kind, (int, np.integer)) else float)


@pytest.mark.parametrize(
    "values",
    [
        tune.choice([tune.uniform(0, 1)]),
        tune.choice([tune.choice([tune.uniform(0, 1)])]),
        lambda: tune.uniform(0, 1),
    ],
)
def test_a_domain_inside_of_what_is_drawn_is_drawn_from(values: Any) -> None:
    rng = random.Random(1)
    drawn = explore(
        {"x": 7.0}, {"x": values}, resample_probability=1.0, factors=(1.2,), custom=None, rng=rng
    )
    assert 0 <= drawn["x"] <= 1


def _fail() -> float:
    raise ValueError("no")


_TEXTS = tune.choice(["relu", "tanh"])


@pytest.mark.parametrize(
    ("mutation", "given"),
    [
        (_TEXTS, _TEXTS),
        (tune.choice([1, None]), tune.choice([1])),
        (tune.uniform(0, 1), "relu"),
        (tune.uniform(0, 1), tune.grid_search(["relu"])),
        (tune.uniform(0, 1), {"grid_search": [1, "relu"]}),
        (lambda: "relu", _TEXTS),
    ],
)
def test_what_cannot_be_multiplied_is_refused_before_the_start(mutation: Any, given: Any) -> None:
    mutations = {"a": {"act": mutation}}
    scheduler = make(Population(), hyperparam_mutations=mutations)
    with pytest.raises(ConfigError, match=r"a/act is .*cannot be multiplied.*a list of values"):
        scheduler.check_sweep({"a": {"act": given}}, None)
    drawn = make(Population(), hyperparam_mutations=mutations, resample_probability=1)
    drawn.check_sweep({"a": {"act": given}}, None)


@pytest.mark.parametrize(
    ("mutation", "given"),
    [
        (tune.choice([1, 2.5, True, np.int64(3)]), tune.choice([1])),
        (["relu", "tanh"], _TEXTS),
        (tune.uniform(0, 1), tune.choice([tune.uniform(0, 1)])),
        (tune.uniform(0, 1), tune.sample_from(lambda: 0.5)),
        (float, tune.loguniform(1, 2)),
    ],
)
def test_what_may_be_a_number_is_not_refused(mutation: Any, given: Any) -> None:
    make(Population(), hyperparam_mutations={"a": mutation}).check_sweep({"a": given}, None)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: PopulationBasedTraining(), "has nothing to change"),
        (lambda: make(Population(), perturbation_interval=0), "A number above 0"),
        (lambda: make(Population(), burn_in_period=-1), "A number above 0"),
        (lambda: make(Population(), quantile_fraction=0.6), r"0\.6.*from 0 to 0\.5"),
        (lambda: make(Population(), quantile_fraction=-0.1), "from 0 to"),
        (lambda: make(Population(), resample_probability=2), "from 0 to 1"),
        (lambda: make(Population(), perturbation_factors=()), r"\(1\.2, 0\.8\)"),
        (lambda: make(Population(), perturbation_factors=(1.2, "x")), "A number above 0"),
        (lambda: make(Population(), custom_explore_fn=3), "a function that is given"),
        (lambda: make(Population(), hyperparam_mutations=[1]), "a dict is needed"),
        (lambda: make(Population(), hyperparam_mutations={"a": []}), "an empty list"),
        (lambda: make(Population(), hyperparam_mutations={"a": 3}), "A list of values, a domain"),
        (
            lambda: make(Population(), hyperparam_mutations={"a": [1, tune.uniform(2, 3)]}),
            "a list with a domain",
        ),
        (
            lambda: make(Population(), hyperparam_mutations={"a": {"b": tune.grid_search([1])}}),
            "a/b is .*nothing can be drawn later",
        ),
        (
            lambda: make(Population(), hyperparam_mutations={"a": tune.sample_from(dict)}),
            "nothing can be drawn later",
        ),
        (
            lambda: make(Population(), hyperparam_mutations={"lrr": [1]}).check_sweep(
                {"lr": 1}, None
            ),
            "'lrr', which param_space lacks.*Did you mean 'lr'",
        ),
        (
            lambda: make(Population(), hyperparam_mutations={"a": {"b": [1]}}).check_sweep(
                {"a": 3}, None
            ),
            "'a/b', which param_space lacks",
        ),
        (lambda: make(Population()).check_sweep({"lr": 1}, object()), "Leave search_alg out"),
        (lambda: _explored({"a": "x"}, {"a": tune.choice(["x"])}), "cannot be multiplied"),
        (lambda: _explored({"a": 1}, {"a": [1]}, lambda config: None), "Return the configuration"),
        (lambda: _explored({"a": 1}, {"a": [1]}, lambda config: 1 / 0), "ZeroDivisionError"),
        (
            lambda: _explored({"a": 1}, {"a": [1]}, lambda config: {"a": tune.uniform(0, 1)}),
            "Return a value",
        ),
        (
            lambda: explore(
                {"a": 1},
                {"a": _fail},
                resample_probability=1.0,
                factors=(1.2,),
                custom=None,
                rng=random.Random(0),
            ),
            "the function of a failed: ValueError",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_needed(
    make_it: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_it()


@pytest.mark.parametrize(("lost", "name"), [("lr", "lr"), ("inside", "inside/size")])
def test_a_configuration_that_lost_what_is_changed_is_refused(lost: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"returned a configuration without {name}, which"):
        explore(
            {"lr": 0.1, "inside": {"size": 3}},
            {"lr": tune.uniform(0, 1), "inside": {"size": [1, 3]}},
            resample_probability=0.5,
            factors=(0.8, 1.2),
            custom=lambda config: {"inside": {}, **{k: config[k] for k in config if k != lost}},
            rng=random.Random(0),
        )
