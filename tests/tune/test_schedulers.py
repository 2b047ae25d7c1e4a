"""Schedulers decide as Ray Tune's do, by what those have decided: see record_ray.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.tune import TuneConfig
from hpctrain.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from hpctrain.tune.schedulers.asha import percentile
from hpctrain.tune.search import Searcher

RECORDED = json.loads((Path(__file__).parent / "recorded/ray.json").read_text())


class _WithBrackets(ASHAScheduler):
    """Puts trials where Ray Tune put them."""

    def put(self, brackets: dict[str, int]) -> None:
        """Choose what was recorded."""
        for name, index in brackets.items():
            self._bracket_of[name] = self._brackets[index]


def _decide(scheduler: Any, report: list[Any]) -> str:
    name, iteration, value, decision = report
    metrics = {"training_iteration": iteration, "m": math.nan if value is None else value}
    if decision == "COMPLETE":
        scheduler.on_complete(name, metrics)
        return decision
    return str(scheduler.on_result(name, metrics))


@pytest.mark.parametrize("recorded", RECORDED["asha"], ids=lambda each: str(each["options"]))
def test_asha_stops_the_trials_that_ray_tune_stops(recorded: dict[str, Any]) -> None:
    scheduler = _WithBrackets(metric="m", mode=recorded["mode"], **recorded["options"])
    scheduler.put(recorded["brackets"])
    decisions = [_decide(scheduler, report) for report in recorded["reports"]]
    assert decisions == [report[-1] for report in recorded["reports"]]


@pytest.mark.parametrize("recorded", RECORDED["median"], ids=lambda each: str(each["options"]))
def test_the_median_rule_stops_the_trials_that_ray_tune_stops(recorded: dict[str, Any]) -> None:
    scheduler = MedianStoppingRule(metric="m", mode=recorded["mode"], **recorded["options"])
    decisions = [_decide(scheduler, report) for report in recorded["reports"]]
    assert decisions == [report[-1] for report in recorded["reports"]]


def test_what_was_recorded_has_decisions_of_both_kinds() -> None:
    for kind in ("asha", "median"):
        decisions = {report[-1] for each in RECORDED[kind] for report in each["reports"]}
        assert decisions == {"CONTINUE", "STOP", "COMPLETE"}


def test_the_percentile_is_numpys(each_example: Callable[[Callable[[Any], None]], None]) -> None:
    def check(rng: np.random.Generator) -> None:
        values = rng.normal(scale=10.0 ** rng.integers(-8, 8), size=rng.integers(1, 40))
        values[rng.random(values.size) < 0.1] = math.nan
        share = float(1 - 1 / rng.uniform(1.01, 9))
        if np.isnan(values).all():
            assert percentile(values.tolist(), share) is None
        else:
            found = percentile(values.tolist(), share)
            assert found is not None
            assert found == pytest.approx(np.nanpercentile(values, share * 100), rel=1e-12)

    each_example(check)


def test_each_trial_is_put_into_a_bracket_and_the_same_ones_by_the_same_seed() -> None:
    def choose(seed: int) -> list[int]:
        scheduler = ASHAScheduler(metric="m", mode="min", max_t=64, brackets=3, seed=seed)
        for number in range(40):
            scheduler.on_trial_add(str(number))
        return [scheduler._brackets.index(each) for each in scheduler._bracket_of.values()]

    assert choose(1) == choose(1) != choose(2)
    assert set(choose(1)) == {0, 1, 2}
    assert choose(1).count(0) > choose(1).count(2)


def test_a_report_without_the_metric_or_the_time_decides_nothing() -> None:
    for scheduler in (
        ASHAScheduler(metric="m", mode="max", max_t=3),
        MedianStoppingRule(metric="m", mode="max", grace_period=0, min_samples_required=1),
    ):
        scheduler.on_trial_add("a")
        assert scheduler.on_result("a", {"other": 1, "training_iteration": 9}) == "CONTINUE"
        assert scheduler.on_result("a", {"m": 1}) == "CONTINUE"
        scheduler.on_complete("a", {"other": 1})


def test_metrics_may_be_nested() -> None:
    scheduler = ASHAScheduler(metric="val/loss", mode="min", time_attr="epoch/n", max_t=3)
    scheduler.on_trial_add("a")
    assert scheduler.on_result("a", {"val": {"loss": 1}, "epoch": {"n": 3}}) == "STOP"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHAScheduler(mode="maximum"), "One of 'min', 'max' is needed"),
        (lambda: ASHAScheduler(max_t=0), "A number above 0"),
        (lambda: ASHAScheduler(max_t=3, grace_period=4), "no trial would reach"),
        (lambda: ASHAScheduler(reduction_factor=1), "milestones have to grow"),
        (lambda: ASHAScheduler(reduction_factor=1 + 1e-7), "more than 10000 milestones"),
        (lambda: ASHAScheduler(brackets=0), "must be 1 or more"),
        (lambda: MedianStoppingRule(grace_period=-1), "A number above 0"),
        (lambda: MedianStoppingRule(min_samples_required=0), "must be 1 or more"),
        (lambda: ASHAScheduler().set_search_properties(None, "min"), "needs a metric and a mode"),
        (lambda: MedianStoppingRule(hard_stop=False), "none is paused for others"),
        (lambda: MedianStoppingRule(min_time_slice=-1), "A number above 0"),
        (
            lambda: ASHAScheduler(metric="a", mode="min").set_search_properties("b", "min"),
            "Leave one of them out",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_needed(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ASHAScheduler("epoch", "loss", "min", 9, 1, 3, 1, True),
        lambda: HyperBandScheduler("epoch", "loss", "min", 9, 3, True),
        lambda: MedianStoppingRule("epoch", "loss", "min", 1.0, 3, 5, True),
        lambda: PopulationBasedTraining(
            *("epoch", "loss", "min", 4, 0.0, {"lr": [1, 2]}, 0.25, 0.25, (1.2, 0.8), None),
            *(True, False, False),
        ),
    ],
    ids=["asha", "hyperband", "median", "pbt"],
)
def test_arguments_have_the_order_of_ray_tune(make: Callable[[], TrialScheduler]) -> None:
    scheduler = make()
    assert (scheduler.time_attr, scheduler.metric, scheduler.mode) == ("epoch", "loss", "min")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ASHAScheduler(grace_perod=1),
            r"AsyncHyperBandScheduler has no argument 'grace_perod'\. Did you mean 'grace_period'",
        ),
        (lambda: HyperBandScheduler(max_time=1), "HyperBandScheduler has no argument 'max_time'"),
        (lambda: MedianStoppingRule(hardstop=True), "Did you mean 'hard_stop'"),
        (lambda: PopulationBasedTraining(hyperparam_mutation={}), "'hyperparam_mutations'"),
        (lambda: FIFOScheduler(metric="loss"), r"no argument 'metric'\. It has none"),
        (lambda: ASHAScheduler(*range(9)), r"too many positional arguments\. By position: time_at"),
    ],
)
def test_an_argument_that_is_not_there_is_answered_with_the_nearest_one(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert isinstance(caught.value, TypeError), "it is one in Ray Tune"


def test_a_report_that_pbt_cannot_compare_is_refused_where_that_is_asked_for() -> None:
    def make(**requires: bool) -> PopulationBasedTraining:
        rule = PopulationBasedTraining(
            metric="loss", mode="min", hyperparam_mutations={"lr": [1, 2]}, **requires
        )
        rule.on_trial_add("a")
        return rule

    assert make().on_result("a", {"time_total_s": 1.0}) == "CONTINUE"
    with pytest.raises(ConfigError, match=r"a made a report without 'loss' or 'time_total_s'"):
        make(require_attrs=True).on_result("a", {"time_total_s": 1.0})


def test_without_a_scheduler_no_metric_is_needed() -> None:
    scheduler = FIFOScheduler()
    scheduler.set_search_properties(None, None)
    assert scheduler.on_result("a", {}) == "CONTINUE"


def test_a_scheduler_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ImportError, match="there are ASHAScheduler, HyperBandScheduler, Median"):
        from hpctrain.tune.schedulers import PB2  # noqa: F401


def test_numbers_of_numpy_are_numbers() -> None:
    asha = ASHAScheduler(
        max_t=np.int32(16),
        grace_period=np.int64(1),
        reduction_factor=np.float32(4),
        brackets=np.int8(1),
        seed=np.int64(3),
    )
    assert asha._brackets[0].milestones == [16, 4, 1]
    assert type(asha._max_t) is int
    median = MedianStoppingRule(grace_period=np.float32(0), min_samples_required=np.int64(2))
    assert (median._grace_period, median._min_samples) == (0, 2)
    assert type(median._grace_period) is float
    band = HyperBandScheduler(max_t=np.int64(9), reduction_factor=np.int64(3))
    assert type(band._max_t) is int
    pbt = PopulationBasedTraining(
        perturbation_interval=np.int64(4),
        burn_in_period=np.float32(2),
        quantile_fraction=np.float32(0.5),
        resample_probability=np.float32(0.25),
        perturbation_factors=(np.float32(2), np.int64(3)),
        hyperparam_mutations={"lr": [1, 2]},
        seed=np.int64(7),
    )
    assert (pbt._interval, pbt._burn_in, pbt._share, pbt._factors) == (4, 2, 0.5, (2, 3))
    assert pbt._seed == 7
    for wrong in (np.bool_(True), np.float64("nan"), np.arange(2), "4"):
        with pytest.raises(ConfigError, match="A number above 0 is needed"):
            ASHAScheduler(max_t=wrong)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fifo", FIFOScheduler),
        ("asha", ASHAScheduler),
        ("async_hyperband", ASHAScheduler),
        ("median_stopping_rule", MedianStoppingRule),
        ("hyperband", HyperBandScheduler),
    ],
)
def test_a_scheduler_may_be_given_by_its_name(name: str, kind: type[TrialScheduler]) -> None:
    found = TuneConfig(metric="loss", mode="min", scheduler=name).scheduler
    assert type(found) is kind


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hyperbnd", r"'hyperbnd'.*ASHAScheduler\(\), or its name\. Did you mean 'hyperband'"),
        ("ASHA", "Did you mean 'asha'"),
        ("bohb", "By name there are fifo, asha"),
        (ASHAScheduler, r"Construct it: AsyncHyperBandScheduler\(\)"),
        (5, "By name there are"),
        ("pbt", "has nothing to change"),
    ],
)
def test_what_is_no_scheduler_is_refused_with_those_there_are(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneConfig(metric="loss", mode="min", scheduler=given)


class _NotConstructed(TrialScheduler):
    """Forgets its base."""

    def __init__(self) -> None:
        self.seen = 0


class _SearchNotConstructed(Searcher):
    """Forgets its base."""

    def __init__(self) -> None:
        self.seen = 0


def test_a_rule_that_does_not_construct_its_base_is_told_so() -> None:
    message = r"NotConstructed has no metric and mode: .*super\(\)\.__init__\(\)"
    with pytest.raises(ConfigError, match=message):
        _NotConstructed().set_search_properties("loss", "min")
    with pytest.raises(ConfigError, match=message):
        _SearchNotConstructed().set_search_properties("loss", "min", {})
