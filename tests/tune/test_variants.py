"""Search spaces: what is drawn, and in which order."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig, tune
from hpctrain.errors import UnavailableNameError
from hpctrain.tune.domains import Grid
from hpctrain.tune.search import Searcher
from hpctrain.tune.source import SearchSource, VariantSource, merge_suggestion
from hpctrain.tune.variants import Variants, check_space
from hpctrain.unresolved import find_unresolved

RECORDED = json.loads((Path(__file__).parent / "recorded/ray.json").read_text())


def _gridded(space: Any) -> Any:
    if isinstance(space, dict):
        return {key: _gridded(value) for key, value in space.items()}
    if isinstance(space[0], list):
        return [tune.grid_search(values) for values in space]
    return tune.grid_search(space)


@pytest.mark.parametrize("recorded", RECORDED["grids"], ids=lambda each: str(each["space"]))
def test_grids_are_gone_through_in_ray_tunes_order(recorded: dict[str, Any]) -> None:
    variants = Variants(space=_gridded(recorded["space"]), seed=0)
    assert [variants[i] for i in range(len(variants))] == recorded["variants"]


def test_any_grid_has_each_combination_num_samples_times(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        names = [f"p{i}" for i in range(rng.integers(0, 4))]
        values = {name: list(range(rng.integers(1, 4))) for name in names}
        samples = int(rng.integers(1, 4))
        space = {
            "nested": {name: tune.grid_search(each) for name, each in values.items()},
            "drawn": tune.uniform(0, 1),
        }
        variants = Variants(space=space, seed=int(rng.integers(1000)), num_samples=samples)
        all_of_them = [variants[i] for i in range(len(variants))]
        found = sorted(tuple(each["nested"].values()) for each in all_of_them)
        assert found == sorted(list(itertools.product(*values.values())) * samples)
        drawn = [each["drawn"] for each in all_of_them]
        assert len(set(drawn)) == len(drawn), "drawn anew for each"
        assert all_of_them == [variants[i] for i in range(len(variants))], "and repeatable"

    each_example(check)


def test_draws_are_inside_their_domain_and_multiples_of_its_step(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        draw = random.Random(int(rng.integers(2**31)))
        low, width, step = (int(rng.integers(*b)) for b in ((1, 50), (1, 90), (2, 9)))
        high = low + width
        domains: list[tuple[Any, Callable[[Any], bool]]] = [
            (tune.uniform(low, high), lambda x: low <= x <= high),
            (tune.loguniform(low, high), lambda x: low <= x <= high),
            (tune.quniform(low * step, high * step, step), lambda x: x % step == 0),
            (tune.qloguniform(low * step, high * step, step), lambda x: x % step == 0),
            (tune.randint(low, high), lambda x: low <= x < high),
            (tune.lograndint(low, high), lambda x: low <= x < high),
            (tune.qrandint(low * step, high * step, step), lambda x: x % step == 0),
            (tune.qlograndint(low * step, high * step, step), lambda x: x % step == 0),
            (tune.qrandn(0, 10, step), lambda x: x % step == 0),
        ]
        for domain, is_inside in domains:
            for _ in range(5):
                value = domain.sample(draw)
                assert is_inside(value), (domain, value)
                if getattr(domain, "q", None) is not None and hasattr(domain, "lower"):
                    assert domain.lower <= value <= domain.upper, (domain, value)

    each_example(check)


def test_a_multiple_is_never_an_ulp_beyond_a_bound(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        draw = random.Random(int(rng.integers(2**31)))
        q = float(rng.choice([0.1, 0.05, 0.07, 0.3, 1e-3, 1e-4, 1.1]))
        first, last = sorted(map(int, rng.choice(np.arange(1, 30), 2, replace=False)))
        # As they are written, which is not how they are computed.
        low, high = (float(f"{n * q:.6g}") for n in (first, last))
        for make in (tune.quniform, tune.qloguniform):
            domain = make(low, high, q)
            for _ in range(20):
                assert low <= domain.sample(draw) <= high, (domain, first, last)
            assert domain.quantize(high) == pytest.approx(high, rel=1e-15)

    each_example(check)


def test_draws_have_the_distribution_that_their_name_says() -> None:
    draw = random.Random(0)
    logs = [math.log10(tune.loguniform(1e-4, 1).sample(draw)) for _ in range(4000)]
    assert np.mean(logs) == pytest.approx(-2, abs=0.1)
    assert np.std(logs) == pytest.approx(4 / math.sqrt(12), abs=0.1)
    normal = [tune.randn(3, 2).sample(draw) for _ in range(4000)]
    assert (np.mean(normal), np.std(normal)) == (
        pytest.approx(3, abs=0.15),
        pytest.approx(2, abs=0.15),
    )
    counts = np.bincount([tune.qrandint(0, 8, 4).sample(draw) for _ in range(3000)])
    assert counts[[0, 4, 8]] == pytest.approx(1000, abs=120)
    ends = {tune.qrandint(0, 3, 1).sample(draw) for _ in range(200)}
    assert ends == {0, 1, 2}, "with a step of 1 the upper bound is left out, as in Ray Tune"


def test_a_parameter_that_is_added_changes_no_other() -> None:
    space = {"lr": tune.uniform(0, 1)}
    more = {"momentum": tune.uniform(0, 1), **space}
    assert Variants(space=space, seed=1)[0]["lr"] == Variants(space=more, seed=1)[0]["lr"]


def test_a_domain_inside_a_choice_is_drawn_from_as_a_whole() -> None:
    space = {"x": tune.choice([None, tune.uniform(0, 1)])}
    variants = Variants(space=space, seed=7, num_samples=1000)
    drawn = [x for each in variants if (x := each["x"]) is not None]
    assert len(drawn) == pytest.approx(500, abs=60)
    quarters = np.histogram(drawn, bins=4, range=(0, 1))[0] / len(drawn)
    assert quarters == pytest.approx([0.25] * 4, abs=0.08)


def test_functions_are_given_the_values_that_are_there_whatever_the_order() -> None:
    space = {
        "c": tune.sample_from(lambda config: config["b"] + 1),
        "b": tune.sample_from(lambda config: config["in"]["a"] * 2),
        "in": {"a": tune.choice([5])},
        "none": tune.sample_from(lambda: 7),
    }
    assert Variants(space=space, seed=0)[0] == {"c": 11, "b": 10, "in": {"a": 5}, "none": 7}


def test_functions_that_wait_for_each_other_are_refused() -> None:
    space = {
        "a": tune.sample_from(lambda config: config["b"]),
        "b": tune.sample_from(lambda config: config.get("a")),
    }
    with pytest.raises(ConfigError, match="must not need its own"):
        Variants(space=space, seed=0)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda config: [value for name, value in config.items() if name != "c"],
        lambda config: sum(config.values()),
        lambda config: {**config},
        lambda config: dict(config),
        lambda config: config,
        lambda config: config.copy(),
        lambda config: [config],
        lambda config: {name: config[name] for name in config},
    ],
)
def test_a_function_that_walks_through_the_config_is_told_what_has_no_value_yet(
    function: Callable[[Any], Any],
) -> None:
    waits = tune.sample_from(lambda config: config["b"])
    space = {"a": 1, "b": tune.sample_from(function), "c": waits}
    lacks = r"sample_from\(\) of b failed: .*c'.*(no value yet|without a value)"
    with pytest.raises(ConfigError, match=lacks):
        Variants(space=space, seed=0)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda config: sum(value for name, value in config.items() if name.startswith("n_")),
        lambda config: sum(config.values()),
        lambda config: sum(config[name] for name in config),
        lambda config: sum({**config}.values()),
    ],
)
def test_a_function_walks_through_all_but_its_own_value(function: Callable[[Any], Any]) -> None:
    space = {"n_a": 1, "n_b": tune.choice([2]), "all": tune.sample_from(function)}
    assert Variants(space=space, seed=0)[0]["all"] == 3
    inside = {"in": {**space, "all": tune.sample_from(lambda config: function(config["in"]))}}
    assert Variants(space=inside, seed=0)[0]["in"]["all"] == 3
    waits = {**space, "n_c": tune.sample_from(lambda config: config["all"])}
    with pytest.raises(ConfigError, match="has no value yet"):
        Variants(space=waits, seed=0)[0]


def test_a_function_may_walk_through_what_has_values() -> None:
    space = {
        "in": {"a": tune.choice([1]), "b": 2},
        "n": tune.sample_from(lambda config: sum(config["in"].values())),
        "copy": tune.sample_from(lambda config: {**config["in"]}),
        "items": tune.sample_from(lambda config: sorted(config["in"].items())),
        "names": tune.sample_from(lambda config: sorted(config)),
        "drawn": tune.sample_from(lambda config: {"c": tune.choice([config["in"]["b"]])}),
    }
    found = Variants(space=space, seed=0)[0]
    assert (found["n"], found["copy"]) == (3, {"a": 1, "b": 2})
    assert found["items"] == [("a", 1), ("b", 2)]
    assert found["names"] == sorted(space.keys() - {"names"})
    assert found["drawn"] == {"c": 2}


def test_values_that_are_drawn_may_hold_domains() -> None:
    space = {"optimizer": tune.choice([{"name": "sgd", "lr": tune.uniform(2, 3)}])}
    assert 2 <= Variants(space=space, seed=0)[0]["optimizer"]["lr"] <= 3


def test_a_grid_inside_a_drawn_value_is_refused() -> None:
    space = {"a": tune.choice([{"b": tune.grid_search([1])}])}
    with pytest.raises(ConfigError, match="inside a value that is chosen"):
        Variants(space=space, seed=0)[0]


@dataclass(frozen=True)
class _Settings:
    """A dataclass of the user's."""

    depth: Any
    names: tuple[Any, ...] = ()


def test_fields_of_dataclasses_lists_and_tuples_are_resolved() -> None:
    space = {
        "scaling_config": ScalingConfig(
            num_workers=tune.grid_search([1, 2]),
            resources_per_worker={"CPU": tune.choice([3])},
            slurm=SlurmConfig(partition=tune.choice(["gpu"])),
        ),
        "own": _Settings(depth=tune.choice([4]), names=(tune.choice(["x"]), "y")),
        "json": {"grid_search": ["a", "b"]},
    }
    variants = Variants(space=space, seed=0)
    assert len(variants) == 4
    workers = [variants[i]["scaling_config"].num_workers for i in range(4)]
    assert sorted(workers) == [1, 1, 2, 2]
    first = variants[0]
    assert first["scaling_config"].num_cpus_per_worker == 3
    assert first["scaling_config"].slurm.partition == "gpu"
    assert first["own"] == _Settings(depth=4, names=("x", "y"))
    assert {variants[i]["json"] for i in range(4)} == {"a", "b"}


def test_a_value_that_a_configuration_refuses_is_refused_when_it_is_drawn() -> None:
    space = {"scaling_config": ScalingConfig(num_workers=tune.grid_search([-1]))}
    with pytest.raises(ConfigError, match=r"num_workers=.* is -1"):
        Variants(space=space, seed=0)[0]
    with pytest.raises(ConfigError, match="use_gpu"):
        ScalingConfig(num_workers=tune.choice([1]), use_gpu="yes")


def test_a_trainer_refuses_what_a_sweep_is_yet_to_choose() -> None:
    from hpctrain import DataParallelTrainer

    scaling = ScalingConfig(num_workers=tune.grid_search([1, 2]))
    with pytest.raises(ConfigError, match=r"Tuner\(trainer, param_space="):
        DataParallelTrainer(lambda: None, scaling_config=scaling)
    trainer = DataParallelTrainer(print, train_loop_config={"lr": tune.uniform(0, 1)})
    with pytest.raises(ConfigError, match="train_loop_config holds"):
        trainer.fit()


def test_trials_do_not_share_what_they_may_change() -> None:
    space = {"layers": [1, 2], "n": tune.grid_search([1, 2])}
    variants = Variants(space=space, seed=0)
    variants[0]["layers"].append(3)
    assert variants[1]["layers"] == [1, 2] == space["layers"]
    for domain in (tune.choice([[1, {"a": 2}]]), tune.grid_search([[1, {"a": 2}]])):
        drawn = Variants(space={"layers": domain}, seed=0, num_samples=2)
        drawn[0]["layers"][1]["a"] = 3
        assert drawn[1]["layers"] == [1, {"a": 2}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tune.grid_search([]), "has no values"),
        (lambda: tune.choice("abc"), "a list of values is needed"),
        (lambda: tune.choice({"a", "b"}), "have another order in each process"),
        (lambda: tune.grid_search(frozenset("ab")), "have another order in each process"),
        (lambda: tune.uniform(1, 1), "the lower bound comes first"),
        (lambda: tune.uniform(1, None), "two numbers are needed"),
        (lambda: tune.loguniform(0, 1), "have a logarithm"),
        (lambda: tune.quniform(0, 1, 0.3), "no multiple of 0.3"),
        (lambda: tune.quniform(0, 1, 0), "above 0"),
        (lambda: tune.randint(0, 1.5), "whole numbers"),
        (lambda: tune.qrandint(1, 2, 5), "no multiple of 5"),
        (lambda: tune.randn(0, 0), "above 0"),
        (lambda: tune.sample_from(3), "a function is needed"),
        (lambda: tune.sample_from(lambda a, b: a), "takes the config, or nothing"),
        (lambda: check_space([1]), "A dict is needed"),
        (lambda: check_space({1: 2}), "Keys are names"),
        (lambda: check_space({"a": {"grid_search": []}}), "has no values"),
    ],
)
def test_a_wrong_domain_is_refused_with_what_is_needed(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(ImportError, match="Did you mean 'loguniform'"):
        tune.logunifrom  # noqa: B018


def test_a_proposal_replaces_domains_and_adds_the_rest() -> None:
    space = {"a": {"x": tune.uniform(0, 1), "y": 1}, "s": ScalingConfig(num_workers=2)}
    merged = merge_suggestion(space, {"a/x": 0.5, "a/z": 3, "s": {"num_workers": 4}})
    assert merged == {"a": {"x": 0.5, "y": 1, "z": 3}, "s": ScalingConfig(num_workers=4)}
    assert merge_suggestion(space, {"a": {"x": 0.25}})["a"] == {"x": 0.25, "y": 1}
    with pytest.raises(ConfigError, match="proposed no a/x"):
        merge_suggestion(space, {"b": 1})
    with pytest.raises(ConfigError, match=r"proposed a value with Float.* as b/lr\. Nothing"):
        merge_suggestion(space, {"a/x": 0.5, "b": {"lr": tune.uniform(0, 1)}})
    with pytest.raises(ConfigError, match=r"proposed \{'y': 1\} inside of Float\("):
        merge_suggestion(space, {"a/x/y": 1})


def test_every_name_of_ray_tune_is_there_or_answered_with_what_to_use() -> None:
    for name in RECORDED["names"]:
        try:
            getattr(tune, name)
        except ImportError as error:
            assert f"hpctrain.tune has no {name}: " in str(error)  # noqa: PT017


def test_a_configuration_may_hold_itself_be_deep_and_hold_a_value_twice() -> None:
    config: dict[str, Any] = {"lr": tune.uniform(0, 1)}
    config["self"] = config
    assert list(find_unresolved(config)) == [(("lr",), config["lr"])]
    deep: list[Any] = [config["lr"]]
    for _ in range(2000):
        deep = [deep]
    ((path, domain),) = find_unresolved(deep)
    assert (path, domain) == ((0,) * 2001, config["lr"])
    twice = [config["lr"]]
    found = [path for path, _ in find_unresolved({"a": twice, "b": (twice, 1)})]
    assert found == [("a", 0), ("b", 0, 0)]


def test_a_space_that_holds_itself_is_copied_with_what_it_holds() -> None:
    space: dict[str, Any] = {"lr": tune.uniform(0, 1), "constants": {"n": 1}}
    space["constants"]["self"] = space["constants"]
    config = Variants(space=space, seed=0)[0]
    assert config["constants"]["self"] is config["constants"]
    assert config["constants"] is not space["constants"]


class _Plain:
    """An object of the user's."""

    def __init__(self, lr: Any) -> None:
        self.lr = lr


@pytest.mark.parametrize(
    ("hidden", "place"),
    [
        (SimpleNamespace(lr=tune.uniform(0, 1)), "a/lr"),
        (
            SimpleNamespace(inside={"lr": [tune.uniform(0, 1)]}, n=SimpleNamespace()),
            "a/inside/lr/0",
        ),
        (SimpleNamespace(inside=SimpleNamespace(lr=tune.uniform(0, 1))), "a/inside/lr"),
        ({tune.uniform(0, 1), 3}, "a/[01]"),
        ([{"b": frozenset([tune.randint(0, 3)])}], "a/0/b/0"),
        (tune.choice([SimpleNamespace(lr=tune.uniform(0, 1))]), "a/categories/0/lr"),
        (_Settings(depth=_Plain(tune.uniform(0, 1))), "a/depth/lr"),
    ],
)
def test_a_domain_that_is_not_seen_is_refused_with_its_place(hidden: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"at {place}, where it is not drawn"):
        check_space({"a": hidden})


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_domain_that_is_seen_elsewhere_is_refused_where_it_is_not(names: str) -> None:
    shared = {"lr": tune.uniform(0, 1)}
    places = {"a": shared, "b": SimpleNamespace(inside=shared)}
    with pytest.raises(ConfigError, match="at b/inside/lr, where it is not drawn"):
        check_space({name: places[name] for name in names})


def test_objects_that_hold_no_domain_may_be_in_a_space() -> None:
    itself = SimpleNamespace(n=1)
    itself.itself = itself
    objects = [itself, _Plain(3), {1, 2}, np.arange(3), print, _Plain, _Settings(depth=_Plain(1))]
    check_space({"objects": objects, "lr": tune.choice(objects)})


def test_grids_of_more_combinations_than_len_can_return_are_gone_through() -> None:
    space = {name: tune.grid_search(range(100_000)) for name in "abcd"}
    variants = Variants(space=space, seed=0, num_samples=10**6)
    source = VariantSource(variants=variants)
    assert variants.count == 10**26
    assert source.next(10**26 - 1, "t") == dict.fromkeys("abcd", 99_999)
    assert not source.is_done(10**26 - 1)
    assert source.is_done(10**26)


class _Counted(list[int]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


def test_the_values_of_a_grid_are_not_gone_through_for_each_variant() -> None:
    values = _Counted([1, 2])
    variants = Variants(space={"a": Grid(values=values)}, seed=0, num_samples=50)
    assert [variants[number]["a"] for number in range(variants.count)] == [1, 2] * 50
    assert values.times <= 1


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        ({1: 2}, "the key 1. Keys are names"),
        (np.arange(3), "A dict of parameters"),
        ("finished", "A dict of parameters"),
    ],
    ids=["key", "array", "text"],
)
def test_what_is_no_proposal_is_refused(proposed: Any, message: str) -> None:
    class Own(Searcher):
        def suggest(self, trial_id: str) -> Any:
            return proposed

    with pytest.raises(ConfigError, match=message):
        SearchSource(search=Own(), space={}, num_samples=1).next(0, "t0")


def test_a_function_that_expects_a_spec_is_told_what_it_is_given() -> None:
    space = {"x": 1, "y": tune.sample_from(lambda spec: spec.config.x)}
    with pytest.raises(ConfigError, match=r"is given the config itself.*config\['x'\]"):
        Variants(space=space, seed=0)[0]


def test_numbers_of_numpy_are_numbers() -> None:
    assert tune.randint(np.int64(1), np.uint8(4)) == tune.randint(1, 4)
    assert tune.quniform(np.float32(0), np.float64(2), np.float32(0.5)) == tune.quniform(0, 2, 0.5)
    assert tune.randn(np.float32(0), np.int8(1)) == tune.randn(0, 1)
    assert type(tune.qrandint(np.int64(2), 4, np.int64(2)).q) is int
    assert type(tune.uniform(np.float64(0), 1).lower) is float
    config = tune.TuneConfig(num_samples=np.int64(3), seed=np.int64(2))
    assert repr(config) == "TuneConfig(num_samples=3, seed=2)"
    with pytest.raises(ConfigError, match="two numbers are needed"):
        tune.uniform(np.bool_(False), 1)
    with pytest.raises(ConfigError, match="whole numbers are needed"):
        tune.randint(np.float64(1), 3)  # type: ignore[arg-type]


def test_a_domain_may_be_drawn_from_by_hand() -> None:
    for domain in (tune.uniform(0, 1), tune.qrandint(0, 4, 2), tune.choice([0, 1]), tune.randn()):
        assert -99 < domain.sample() < 99
        assert len(domain.sample(size=3)) == 3
    assert tune.sample_from(lambda: 7).sample(size=2) == [7, 7]
    with pytest.raises(ConfigError, match=r"there is none\. Call the function itself"):
        tune.sample_from(lambda config: config["x"]).sample()
    with pytest.raises(ConfigError, match=r"none is drawn\. Use choice\(\)"):
        tune.grid_search([1, 2]).sample()


def test_the_base_of_a_logarithm_makes_no_difference() -> None:
    assert tune.loguniform(1e-4, 1e-1, base=10) == tune.loguniform(1e-4, 1e-1)
    assert tune.qloguniform(1, 8, 1, base=2) == tune.qloguniform(1, 8, 1)
    assert tune.lograndint(1, 8, base=2) == tune.lograndint(1, 8)
    assert tune.qlograndint(1, 8, 1, base=2) == tune.qlograndint(1, 8, 1)


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("search", "ConcurrencyLimiter", "max_concurrent_trials"),
        ("search", "BasicVariantGenerator", "leave search_alg out"),
        ("search", "Serarcher", "Did you mean 'Searcher'"),
        ("search.hyperopt", "HyperOptSearch", "OptunaSearch"),
        ("search.basic_variant", "BasicVariantGenerator", "leave search_alg out"),
        ("schedulers", "create_scheduler", "ASHAScheduler"),
        ("stopper", "MaximumIterationStopper", "training_iteration"),
        ("stopper", "TimeoutStopper", "time_budget_s"),
        ("logger", "JsonLoggerCallback", "hpctrain.callbacks"),
        ("logger", "UnifiedLogger", "hpctrain.callbacks"),
        ("analysis", "ExperimentAnalysis", "ResultGrid"),
        ("callback", "Callback", "UserCallback"),
        ("error", "TuneError", "TrainingFailedError"),
        ("experiment", "Trial", "a Result for each trial"),
        ("experiment.trial", "Trial", "a Result for each trial"),
        ("experiment.experiment", "Experiment", "use Tuner"),
        ("resources", "Resources", "ScalingConfig"),
        ("execution.placement_groups", "PlacementGroupFactory", "ScalingConfig"),
        ("registry", "register_env", "RLlib"),
        ("progress_reporter", "CLIReporter", "hpctrain tune status"),
        ("utils", "wait_for_gpu", "GPUs of its own"),
        ("utils.util", "merge_dicts", "nothing in its place"),
        ("schedulers.pb2", "PB2", "PopulationBasedTraining"),
        ("schedulers.hb_bohb", "HyperBandForBOHB", "HyperBandScheduler"),
        ("schedulers.resource_changing_scheduler", "ResourceChangingScheduler", "TrialScheduler"),
        ("search.repeater", "Repeater", "grid_search"),
        ("search.concurrency_limiter", "ConcurrencyLimiter", "max_concurrent_trials"),
        ("search.variant_generator", "generate_variants", "leave search_alg out"),
        ("search.sample", "LogUniform", "tune.loguniform"),
        ("integration.keras", "TuneReportCheckpointCallback", "ReportCheckpointCallback"),
        ("integration.pytorch_lightning", "TuneReportCheckpointCallback", "ReportCallback"),
        ("integration.ray_train", "TuneReportCallback", "give Tuner the trainer itself"),
        ("integration.xgboost", "TuneReportCallback", "TuneReportCheckpointCallback"),
    ],
)
def test_a_search_or_scheduler_of_ray_tune_is_answered_with_what_to_use(
    module: str, name: str, instead: str
) -> None:
    with pytest.raises(UnavailableNameError, match=instead):
        exec(f"from hpctrain.tune.{module} import {name}", {})


@pytest.mark.parametrize(
    ("module", "home", "names"),
    [
        ("schedulers.async_hyperband", "tune.schedulers", "ASHAScheduler AsyncHyperBandScheduler"),
        ("schedulers.trial_scheduler", "tune.schedulers", "FIFOScheduler TrialScheduler"),
        ("schedulers.median_stopping_rule", "tune.schedulers", "MedianStoppingRule"),
        ("search.sample", "tune.domains", "Float Integer Categorical uniform sample_from"),
        ("syncer", "config", "SyncConfig"),
    ],
)
def test_what_is_here_is_there_by_the_path_of_ray_tune(module: str, home: str, names: str) -> None:
    for name in names.split():
        found = getattr(import_module(f"hpctrain.tune.{module}"), name)
        assert found is getattr(import_module(f"hpctrain.{home}"), name)


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_the_callback_of_trees_is_there_by_the_name_of_ray_tune(framework: str) -> None:
    pytest.importorskip(framework)
    ours = import_module(f"hpctrain.{framework}").TrainReportCallback
    module = import_module(f"hpctrain.tune.integration.{framework}")
    assert module.TuneReportCheckpointCallback is ours


def test_parameters_of_one_name_are_refused() -> None:
    uniform = tune.uniform(0, 1)
    for space in (
        {"a/b": uniform, "a": {"b": uniform}},
        {"a": {"b/c": uniform, "b": {"c": uniform}}},
    ):
        with pytest.raises(ConfigError, match=r"two parameters of the name a/b.*Rename one"):
            check_space(space)
    check_space({"a/b": uniform, "a": {"c": uniform}})
