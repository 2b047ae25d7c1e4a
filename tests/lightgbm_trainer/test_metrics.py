"""What LightGBM's metrics become over ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm")

import lightgbm
from sklearn.metrics import average_precision_score, roc_auc_score

from hpctrain.lightgbm import metrics
from hpctrain.lightgbm.metrics import Shares, reduce_results, take_over
from hpctrain.world import SerialComm

ROWS = 3001
EXACT = [
    *("l1", "l2", "rmse", "quantile", "huber", "fair", "poisson", "mape", "gamma"),
    *("gamma_deviance", "tweedie", "binary_logloss", "binary_error", "cross_entropy"),
    *("cross_entropy_lambda", "kullback_leibler"),
]


class _Ranks:
    """Plays the ranks: every one of them gathers what all would say."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said
        self.rank, self.size = 0, len(said)

    def allgather(self, mine: Any) -> list[Any]:
        return self._said


def _evaluate(booster: Any, x: Any, y: Any, weight: Any) -> tuple[Any, Shares]:
    data = lightgbm.Dataset(x, y, weight=weight, reference=booster.train_set).construct()
    results = [("valid", *found[1:4]) for found in booster.eval(data, "valid")]
    return results, Shares.of(data)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_metrics_of_two_parts_are_exactly_those_of_the_whole(weighted: bool) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, 4))
    # Between 0 and 1, so that every metric has a meaning.
    y = 1 / (1 + np.exp(-x[:, 0] - 0.3 * random.standard_normal(ROWS)))
    weight = random.uniform(0.5, 2, ROWS) if weighted else None
    params = {"objective": "cross_entropy", "metric": EXACT, "verbosity": -1}
    booster = lightgbm.Booster(params, lightgbm.Dataset(x, y, params=params))
    for _ in range(5):
        booster.update()
    parts = [slice(0, 1000), slice(1000, None)]
    found = [_evaluate(booster, x[p], y[p], None if weight is None else weight[p]) for p in parts]
    said = [[(*result, shares) for result in results] for results, shares in found]
    results, _ = found[0]
    reduced = reduce_results(results, {"valid": found[0][1]}, _Ranks(said))
    whole, _ = _evaluate(booster, x, y, weight)
    assert [metric for _, metric, *_ in reduced] == EXACT
    # Some of LightGBM's metrics add weights up in single precision.
    tolerance = 2e-6 if weighted else 1e-9
    for (_, name, value, larger), expected in zip(reduced, whole, strict=True):
        assert value == pytest.approx(expected[2], rel=tolerance), name
        assert larger == expected[3]


class _Data:
    def __init__(self, label: Any, weight: Any) -> None:
        self.get_label, self.get_weight = lambda: label, lambda: weight


@pytest.mark.parametrize("scale", [1.0, 1e-4], ids=["even", "rare"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("raw", [False, True], ids=["probabilities", "scores"])
def test_areas_under_curves_are_those_of_scikit_learn_to_1e_5(
    monkeypatch: pytest.MonkeyPatch, scale: float, weighted: bool, raw: bool
) -> None:
    random = np.random.default_rng(1)
    margin = random.standard_normal(200_000) * 2 + np.log(scale)
    probability = 1 / (1 + np.exp(-margin))
    label = (random.uniform(size=len(margin)) < probability * 3).astype(np.float32)
    weight = random.uniform(0.5, 2, len(margin)) if weighted else None

    class Worker:
        comm = SerialComm()

    monkeypatch.setattr(metrics, "active_worker", lambda caller: Worker())
    scores = margin * 7 if raw else probability
    _, auc, larger = metrics.distributed_auc(scores, _Data(label, weight))
    assert auc == pytest.approx(roc_auc_score(label, scores, sample_weight=weight), abs=1e-5)
    assert larger
    _, precision, _ = metrics.distributed_average_precision(scores, _Data(label, weight))
    expected = average_precision_score(label, scores, sample_weight=weight)
    assert precision == pytest.approx(expected, abs=1e-4)


def test_areas_are_taken_over() -> None:
    taken = take_over({"metric": "auc, binary_logloss", "eta": 1})
    assert taken.params == {"metric": ["binary_logloss"], "eta": 1}
    assert taken.functions == [metrics.distributed_auc]
    assert take_over({"metric": ["auc"]}).params == {"metric": "None"}
    # What LightGBM takes for the metric of the objective.
    for nothing in ({}, {"metric": ""}, {"metric": None}, {"metric": []}):
        assert take_over(nothing).params == nothing


def test_a_set_of_metrics_has_one_order_on_all_ranks() -> None:
    assert take_over({"metric": {"l2", "l1", "rmse"}}).params["metric"] == ["l1", "l2", "rmse"]


def test_metrics_come_in_the_order_of_one_process(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((60, 2)), random.integers(0, 2, 60)
    known = ["auc", "average_precision", "binary_logloss", "binary_error", "ndcg", "map", "l1"]

    def feval(predictions: Any, data: Any) -> tuple[str, float, bool]:
        return "own", 0.0, False

    def names(params: Any, functions: Any) -> list[tuple[str, str, float, bool]]:
        params = {"objective": "binary", "eval_at": [1, 5], "verbosity": -1, **params}
        data = lightgbm.Dataset(x, y, group=[30, 30], params=params)
        found: dict[str, Any] = {}
        lightgbm.train(
            params,
            data,
            1,
            valid_sets=[data, data.subset(np.arange(30))],
            valid_names=["train", "valid"],
            feval=functions,
            callbacks=[lightgbm.record_evaluation(found)],
        )
        return [(name, metric, 0.0, False) for name in found for metric in found[name]]

    def example(chosen: np.random.Generator) -> None:
        wanted = chosen.permutation(known)[: int(chosen.integers(1, 8))].tolist()
        own = [feval] if chosen.integers(2) else []
        taken = take_over({"metric": wanted})
        # In place of those over ranks, whose names are the same.
        functions = [_named(name) for name in taken.places] + own
        whole = names({"metric": wanted}, own or None)
        assert taken.in_order(names(taken.params, functions or None)) == whole

    each_example(example)


def _named(name: str) -> Any:
    return lambda predictions, data: (name, 0.0, True)
