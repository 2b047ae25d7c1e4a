"""Optuna proposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, tune
from hpctrain.plan import spec
from hpctrain.tune.search.optuna import OptunaSearch
from hpctrain.tune.search.parameters import convert_space
from hpctrain.tune.source import SearchSource

pytest.importorskip("optuna")

SPACE = {
    "a": {"x": tune.uniform(-3, 3), "log": tune.loguniform(1e-3, 1)},
    "n": tune.qrandint(4, 16, 4),
    "i": tune.randint(1, 4),
    "log_i": tune.qlograndint(8, 64, 8),
    "q": tune.qloguniform(0.5, 8, 0.5),
    "what": tune.choice([{"name": "sgd"}, {"name": "adam"}]),
    "plain": tune.choice(["relu", None]),
    "constant": 7,
}


def propose(search: OptunaSearch, count: int, *, first: int = 0) -> list[dict[str, Any]]:
    source = SearchSource(search=search, space=SPACE, num_samples=100)
    configs = []
    for number in range(first, first + count):
        config = source.next(number, f"t{number}")
        assert config is not None
        search.on_trial_result(f"t{number}", {"loss": 9.0, "training_iteration": 1})
        search.on_trial_complete(f"t{number}", {"loss": config["a"]["x"] ** 2})
        configs.append(config)
    return configs


def make(seed: int = 1) -> OptunaSearch:
    search = OptunaSearch(seed=seed)
    search.set_search_properties("loss", "min", SPACE)
    return search


def test_what_is_proposed_is_in_the_space_and_learns_from_results() -> None:
    search = make()
    configs = propose(search, 40)
    for config in configs:
        assert -3 <= config["a"]["x"] <= 3
        assert 1e-3 <= config["a"]["log"] <= 1
        assert config["n"] in (4, 8, 12, 16)
        assert config["i"] in (1, 2, 3)
        assert config["log_i"] in range(8, 65, 8)
        assert (config["q"] / 0.5) % 1 == 0
        assert config["what"]["name"] in ("sgd", "adam")
        assert config["plain"] in ("relu", None)
        assert config["constant"] == 7
    early, late = (sum(c["a"]["x"] ** 2 for c in some) for some in (configs[:10], configs[-10:]))
    assert late < early
    assert propose(make(), 5) == configs[:5], "the same seed proposes the same"


def test_a_restored_search_knows_what_came_of_earlier_trials() -> None:
    configs = propose(make(), 12)
    restored = make(seed=2)
    for number, config in enumerate(configs):
        restored.restore_trial(f"t{number}", config)
        restored.on_trial_complete(f"t{number}", {"loss": config["a"]["x"] ** 2})
    best = min(config["a"]["x"] ** 2 for config in configs)
    assert restored._study.study.best_value == pytest.approx(best)
    assert len(restored._study.study.trials) == 12
    assert propose(restored, 1, first=12)


def test_a_failed_trial_and_one_without_a_number_count_as_failed() -> None:
    search = make()
    for number, (result, error) in enumerate([(None, True), ({"loss": float("nan")}, False)]):
        search.suggest(f"t{number}")
        search.on_trial_complete(f"t{number}", result, error)
    assert [trial.state.name for trial in search._study.study.trials] == ["FAIL", "FAIL"]


@pytest.mark.parametrize("last", [{"status": "ok"}, {"loss": None}, {"loss": 0.5}])
def test_the_last_value_of_a_trial_counts_whatever_it_reports_after_that(last: Any) -> None:
    search = make()
    search.suggest("t0")
    for iteration, loss in enumerate((3.0, 0.5), start=1):
        search.on_trial_result("t0", {"loss": loss, "training_iteration": iteration})
    search.on_trial_complete("t0", last)
    (trial,) = search._study.study.trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 0.5)


def test_a_trial_whose_loss_is_no_number_any_more_counts_as_failed() -> None:
    search = make()
    search.suggest("t0")
    for iteration, loss in enumerate((3.0, float("inf")), start=1):
        search.on_trial_result("t0", {"loss": loss, "training_iteration": iteration})
    search.on_trial_complete("t0", {"status": "ok"})
    assert [trial.state.name for trial in search._study.study.trials] == ["FAIL"]


def test_distributions_of_optuna_and_a_function_of_its_trial_are_spaces() -> None:
    import optuna

    search = OptunaSearch({"x": optuna.distributions.FloatDistribution(0, 1)}, "loss", "max")
    search.set_search_properties(None, None, {})
    assert 0 <= search.suggest("t0")["x"] <= 1

    def define(trial: Any) -> dict[str, Any]:
        return {"twice": 2 * trial.suggest_int("n", 1, 3)}

    search = OptunaSearch(define, "loss", "max")
    search.set_search_properties(None, None, {})
    proposed = search.suggest("t0")
    assert proposed["twice"] == 2 * proposed["n"]
    search.restore_trial("t1", {"n": 2, "twice": 4})
    assert search._study["t1"].params == {"n": 2}


def test_domains_are_a_space_of_its_own_too() -> None:
    import optuna

    space = {
        "x": tune.quniform(0, 1, 0.25),
        "net": {"width": tune.qrandint(8, 32, 8)},
        "y": optuna.distributions.IntDistribution(2, 2),
    }
    search = OptunaSearch(space, "loss", "max", seed=1)
    search.set_search_properties(None, None, {"net": {"depth": 3}})
    source = SearchSource(search=search, space={"net": {"depth": 3}}, num_samples=9)
    for number in range(9):
        config = source.next(number, f"t{number}")
        assert config is not None
        assert config["x"] in (0, 0.25, 0.5, 0.75, 1)
        assert config["net"]["width"] in (8, 16, 24, 32)
        assert (config["net"]["depth"], config["y"]) == (3, 2)


@pytest.mark.parametrize("given", [7, {"b": 7}, [tune.uniform(0, 1)], {"b": [tune.choice([1])]}])
def test_what_is_neither_a_distribution_nor_a_domain_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"has a=.*neither .* nor a domain.*into param_space"):
        OptunaSearch({"a": given}, "loss", "max").set_search_properties(None, None, {})


def test_proposals_can_be_asked_for_without_a_sweep() -> None:
    search = OptunaSearch({"x": tune.uniform(0, 1)}, "loss", "max")
    assert 0 <= search.suggest("t0")["x"] <= 1
    search.on_trial_complete("t0", {"loss": 1.0})
    with pytest.raises(ConfigError, match=r"no search space yet.*space=\.\.\., metric=\.\.\."):
        OptunaSearch().suggest("t0")
    with pytest.raises(ConfigError, match="needs a metric and a mode"):
        OptunaSearch({"x": tune.uniform(0, 1)}).suggest("t0")


@pytest.mark.parametrize(
    "domain",
    [tune.grid_search([1]), tune.randn(), tune.sample_from(lambda: 1)],
    ids=["grid", "randn", "function"],
)
def test_what_optuna_cannot_choose_from_is_refused(domain: Any) -> None:
    with pytest.raises(ConfigError, match="OptunaSearch cannot choose a/b"):
        convert_space({"a": {"b": domain}})


@pytest.mark.parametrize(
    "inside",
    [tune.uniform(0, 1), tune.grid_search([1]), tune.sample_from(lambda: 1)],
    ids=["uniform", "grid", "function"],
)
def test_a_choice_of_values_that_hold_domains_is_refused_with_optunas_way(inside: Any) -> None:
    space = {"opt": tune.choice([{"o": "sgd"}, {"o": "adam", "lr": inside}])}
    for search, of_sweep in ((OptunaSearch(), space), (OptunaSearch(space), {})):
        with pytest.raises(ConfigError, match=r"choose opt: .*'adam'.*define\(trial\)"):
            search.set_search_properties("loss", "min", of_sweep)


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a metric and a mode"):
        OptunaSearch().set_search_properties(None, None, {})
    with pytest.raises(ConfigError, match="leave seed out"):
        OptunaSearch(sampler=object(), seed=1)
    with pytest.raises(ConfigError, match="optimizes one metric"):
        OptunaSearch(metric=["a", "b"], mode=["min", "max"]).set_search_properties(  # type: ignore[arg-type]
            None, None, {}
        )
    with pytest.raises(ConfigError, match="Give a storage too"):
        OptunaSearch({}, "a", "min", [], None, "study")
    with pytest.raises(ConfigError, match="a dict of Optuna's distributions"):
        OptunaSearch([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("has_own_sampler", [False, True])
def test_a_restored_search_does_not_draw_again_what_it_has_drawn(has_own_sampler: bool) -> None:
    import optuna

    def begin() -> OptunaSearch:
        sampler = optuna.samplers.RandomSampler(seed=1) if has_own_sampler else None
        search = OptunaSearch(sampler=sampler, seed=None if has_own_sampler else 1)
        search.set_search_properties("loss", "min", SPACE)
        return search

    configs = propose(begin(), 4)
    again = []
    for _ in range(2):
        restored = begin()
        for number, config in enumerate(configs[:2]):
            restored.restore_trial(f"t{number}", config)
        again.append([config["a"] for config in propose(restored, 3, first=2)])
    assert not [a for a in again[0] if a in [config["a"] for config in configs]]
    assert (again[0] == again[1]) != has_own_sampler, "the default sampler is repeatable"


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_a_restored_function_of_the_trial_finds_its_parameters_inside_the_config() -> None:
    def define(trial: Any) -> None:
        trial.suggest_float("opt/lr", 0, 1)
        trial.suggest_categorical("opt/layers", [(1, 2), (3,)])

    def begin(seed: int) -> OptunaSearch:
        search = OptunaSearch(define, "loss", "min", seed=seed)
        search.set_search_properties(None, None, {})
        return search

    source = SearchSource(search=begin(3), space={}, num_samples=9)
    configs = [source.next(number, f"t{number}") for number in range(3)]
    search = begin(4)
    for number, config in enumerate(configs):
        assert config is not None
        search.restore_trial(f"t{number}", config)
        assert search._study[f"t{number}"].params == {
            "opt/lr": config["opt"]["lr"],
            "opt/layers": config["opt"]["layers"],
        }


class _Plain:
    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    "values",
    [
        [lambda: 1, lambda: 2],
        [_Plain(1), _Plain(2)],
        [np.arange(3), np.arange(4)],
        [[1], [True]],
        [1, True],
        [np.float64(1), 1.0],
    ],
    ids=["functions", "objects", "arrays", "lists", "numbers", "numpy"],
)
def test_any_choice_is_found_again_after_it_was_pickled(values: list[Any]) -> None:
    space = {"a": tune.choice(values)}
    (parameter,) = convert_space(space).values()
    for index, value in enumerate(values):
        chosen = parameter.choice_of(spec.unpack(spec.pack(value, what="a value")))
        assert chosen == index
    search = OptunaSearch(seed=1)
    search.set_search_properties("loss", "min", spec.unpack(spec.pack(space, what="a space")))
    search.restore_trial("t0", {"a": spec.unpack(spec.pack(values[1], what="a value"))})
    assert search._study["t0"].params == {"a": 1}


def test_a_configuration_that_cannot_be_proposed_again_is_named_and_not_learnt_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def define(trial: Any) -> None:
        trial.suggest_categorical("f", ["a", "b"])

    for space, config in (
        (define, {"f": "gone"}),
        (define, {}),
        (None, {"f": "gone"}),
        (None, {}),
    ):
        search = OptunaSearch(space, seed=1)
        search.set_search_properties("loss", "min", {"f": tune.choice(["a", "b"])})
        search.restore_trial("t0", config)
        search.on_trial_complete("t0", {"loss": 1.0})
        assert "cannot propose the configuration of t0 again" in capsys.readouterr().err
        assert not [trial for trial in search._study.study.trials if trial.state.name == "COMPLETE"]


@pytest.mark.filterwarnings("ignore")
def test_a_sampler_that_counts_its_draws_goes_on_where_it_was() -> None:
    import optuna

    def begin() -> OptunaSearch:
        search = OptunaSearch(sampler=optuna.samplers.QMCSampler(scramble=True, seed=3))
        search.set_search_properties("loss", "min", SPACE)
        return search

    configs = propose(begin(), 6)
    search = begin()
    for number, config in enumerate(configs[:4]):
        search.restore_trial(f"t{number}", config)
    for number, config in enumerate(configs[:4]):
        search.on_trial_complete(f"t{number}", {"loss": config["a"]["x"] ** 2})
    again = propose(search, 2, first=4)
    # Numbers are those of a search that was never interrupted; choices are drawn by chance.
    assert [config["a"] for config in again] == [config["a"] for config in configs[4:]]
    assert [config["q"] for config in again] == [config["q"] for config in configs[4:]]


POINTS = [
    {"a": {"x": 2.5, "log": 0.5}, "n": 8, "log_i": 16, "what": {"name": "adam"}, "constant": 7},
    {"plain": None, "a/x": -1.0},
]


def test_points_of_ones_own_are_proposed_first_and_never_again() -> None:
    def begin() -> OptunaSearch:
        search = OptunaSearch(points_to_evaluate=POINTS, seed=1)
        search.set_search_properties("loss", "min", SPACE)
        return search

    search = begin()
    configs = propose(search, 4)
    first, second = configs[:2]
    assert first["a"] == {"x": 2.5, "log": 0.5}
    assert (first["n"], first["log_i"], first["what"]) == (8, 16, {"name": "adam"})
    assert (second["plain"], second["a"]["x"]) == (None, -1.0)
    assert not [config for config in configs[2:] if config["a"]["x"] in (2.5, -1.0)]
    restored = begin()
    restored.restore_trial("t0", first)
    (after, later) = propose(restored, 2, first=1)
    assert after["a"]["x"] == -1.0
    assert later["a"]["x"] not in (2.5, -1.0)
    search.set_search_properties("loss", "min", SPACE)
    assert propose(search, 1)[0]["a"]["x"] == 2.5, "a second sweep begins with them again"


def test_a_point_is_a_multiple_as_it_is_written() -> None:
    search = OptunaSearch(points_to_evaluate=[{"x": 0.3, "y": 0.3}], seed=1)
    space = {"x": tune.qloguniform(0.1, 1, 0.1), "y": tune.quniform(0, 1, 0.1)}
    search.set_search_properties("loss", "min", space)
    assert search.suggest("t0") == {"x": pytest.approx(0.3), "y": pytest.approx(0.3)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({"n": 4}, "a list of configurations is needed"),
        ([3], "a list of configurations is needed"),
        ([{"n": 4}, {"m": 4}], r"points_to_evaluate\[1\] has no parameter 'm'\. .*There are|mean"),
        ([{"n": 5}], r"points_to_evaluate\[0\] has n=5, which param_space does not have"),
        ([{"n": "4"}], "which param_space does not have"),
        ([{"a": {"x": 99.0}}], "has a/x=99.0, which param_space does not have"),
        ([{"what": {"name": "lion"}}], "which param_space does not have"),
        ([{"plain": "gelu"}], "which param_space does not have"),
        ([{"constant": 8}], "has constant=8, which is always 7 in param_space"),
    ],
)
def test_a_point_that_is_not_in_the_space_is_refused(points: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptunaSearch(points_to_evaluate=points).set_search_properties("loss", "min", SPACE)
