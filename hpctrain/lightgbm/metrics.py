"""Metrics of LightGBM over all ranks: LightGBM itself computes them over each rank's rows.

* exact, as means over ranks weighted by their row weights: l1, l2, quantile, huber, fair, poisson,
  mape, gamma, tweedie, binary_*, multi_*, cross_entropy, kullback_leibler; rmse through squares;
* exact, as means weighted by numbers of rows: cross_entropy_lambda; as a sum: gamma_deviance;
* exact, as means weighted by group weights: ndcg, map;
* from histograms of scores: auc to about 1e-5, average_precision to about 1e-4;
* others, and user functions: means over ranks weighted by their row weights.

Every rank computes with the same numbers in the same order, so all get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.worker import mpi
from hpctrain.worker.context import active_worker
from hpctrain.world import Communicator

Array = np.ndarray[Any, Any]

_BINS = 2**16
_RANKING = ("ndcg", "map")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Weights of one rank's rows of a dataset."""

    rows: float
    weight: float
    """Sum of the rows' weights."""
    groups: float
    """Sum of the groups' weights."""

    @classmethod
    def of(cls, dataset: Any) -> Shares:
        """Return the weights of a ``lightgbm.Dataset``. Not collective."""
        rows = float(dataset.num_data())
        weight, sizes = dataset.get_weight(), dataset.get_group()
        total = rows if weight is None else float(np.sum(weight, dtype=np.float64))
        groups = 0.0
        if sizes is not None and weight is None:
            groups = float(len(sizes))
        elif sizes is not None:
            ends = np.cumsum(sizes)
            means = np.add.reduceat(np.asarray(weight, np.float64), ends - sizes) / sizes
            groups = float(means.sum())
        return cls(rows=rows, weight=total, groups=groups)


Result = tuple[str, str, float, bool]
"""Dataset, metric, value, whether large values are better."""


def reduce_results(
    results: Sequence[Any], shares: Mapping[str, Shares], comm: Communicator
) -> list[Result]:
    """Return a round's metrics over all ranks. Collective.

    Parameters
    ----------
    results
        Metrics of LightGBM on this rank.
    shares
        Weights of this rank's rows, by dataset.

    Raises
    ------
    ConfigError
        On every rank, if ranks have different metrics.
    """
    mine = [
        (name, metric, float(value), bool(larger), shares[name])
        for name, metric, value, larger, *_ in results
    ]
    ranks = comm.allgather(mine)
    if any([r[:2] for r in rank] != [r[:2] for r in ranks[0]] for rank in ranks):
        raise ConfigError(
            f"ranks have different metrics: {[[r[:2] for r in rank] for rank in ranks[:4]]}. "
            f"Evaluate the same datasets with the same metrics, in the same order, on every rank."
        )
    reduced = []
    for of_ranks in zip(*ranks, strict=True):
        name, metric, _, larger, _ = of_ranks[0]
        values = [result[2] for result in of_ranks]
        weights = [_weight(metric, result[4]) for result in of_ranks]
        reduced.append((name, metric, _reduce(metric, values, weights), larger))
    return reduced


def distributed_auc(predictions: Array, dataset: Any) -> tuple[str, float, bool]:
    """Return the area under the ROC curve over the rows of all ranks, to about 1e-5.

    Collective. Pass it to ``lightgbm.train(feval=...)`` in place of the metric ``auc``, which
    cannot be computed from the values of each rank's rows.
    """
    positive, negative = _histograms(predictions, dataset)
    below = np.cumsum(negative) - negative / 2
    pairs = positive.sum() * negative.sum()
    return "auc", float((positive * below).sum() / pairs) if pairs else 1.0, True


def distributed_average_precision(predictions: Array, dataset: Any) -> tuple[str, float, bool]:
    """Return the average precision over the rows of all ranks, to about 1e-4. Collective."""
    positive, negative = (counts[::-1] for counts in _histograms(predictions, dataset))
    hits = np.cumsum(positive)
    found = hits + np.cumsum(negative)
    total = positive.sum()
    precision = np.divide(hits, found, out=np.zeros_like(hits), where=found > 0)
    return "average_precision", float((precision * positive).sum() / total) if total else 1.0, True


_DISTRIBUTED: dict[str, Callable[..., tuple[str, float, bool]]] = {
    "auc": distributed_auc,
    "average_precision": distributed_average_precision,
}


@dataclass(frozen=True, kw_only=True)
class TakenOver:
    """The metrics that hpctrain computes, and those left to LightGBM."""

    params: Mapping[str, Any]
    """Parameters of LightGBM without the metrics that hpctrain computes."""
    functions: Sequence[Callable[..., tuple[str, float, bool]]] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    """How many of LightGBM's metrics precede each of these in reports."""

    def in_order(self, results: Sequence[Result]) -> list[Result]:
        """Return a round's metrics in the order of a single process. Not collective."""
        ordered: list[Result] = []
        for _, of_dataset in groupby(results, key=lambda result: result[0]):
            found = list(of_dataset)
            ours = [result for result in found if result[1] in self.places]
            theirs = [result for result in found if result[1] not in self.places]
            # ndcg@1 and ndcg@5 are one metric.
            groups = groupby(theirs, key=lambda result: result[1].partition("@")[0])
            for place, (_, group) in enumerate(groups):
                ordered += [result for result in ours if self.places[result[1]] == place]
                ordered += group
            seen = {result[:2] for result in ordered}
            ordered += [result for result in ours if result[:2] not in seen]
        return ordered


def take_over(params: Mapping[str, Any]) -> TakenOver:
    """Return which metrics in parameters hpctrain computes. Not collective.

    Parameters
    ----------
    params
        Parameters by their main names.
    """
    wanted = params.get("metric")
    # Python's hashes of text differ between processes, so a set has another order on each rank.
    if isinstance(wanted, (set, frozenset)):
        wanted = sorted(wanted)
    names = wanted.split(",") if isinstance(wanted, str) else list(wanted or ())
    names = [name for given in names if (name := given.strip())]
    if not names:
        return TakenOver(params=params)
    names = list(dict.fromkeys(names))
    rest = [name for name in names if name not in _DISTRIBUTED]
    places = {
        name: sum(other in rest for other in names[:place])
        for place, name in enumerate(names)
        if name in _DISTRIBUTED
    }
    return TakenOver(
        params={**params, "metric": rest or "None"},
        functions=[_DISTRIBUTED[name] for name in places],
        places=places,
    )


def _weight(metric: str, shares: Shares) -> float:
    if metric.partition("@")[0] in _RANKING:
        return shares.groups
    return shares.rows if metric == "cross_entropy_lambda" else shares.weight


def _reduce(metric: str, values: Sequence[float], weights: Sequence[float]) -> float:
    if metric == "gamma_deviance":
        return math.fsum(values)
    if metric == "rmse":
        return math.sqrt(_reduce("l2", [value**2 for value in values], weights))
    total = math.fsum(weights)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def _histograms(predictions: Array, dataset: Any) -> tuple[Array, Array]:
    """Return the weights of positive and of negative rows by score, over all ranks."""
    comm: Any = active_worker("distributed_auc()").comm
    ends = comm.allgather(
        (predictions.min(), predictions.max()) if len(predictions) else (np.inf, -np.inf)
    )
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    score = predictions
    if low >= 0 and high <= 1:
        # Bins of equal width in log-odds: the probabilities of rare positives are all near 0.
        score, low, high = _log_odds(predictions), _log_odds(low), _log_odds(high)
    bins = ((score - low) * ((_BINS - 1) / ((high - low) or 1.0))).astype(np.int64)
    label, weight = dataset.get_label() > 0, dataset.get_weight()
    counts = np.zeros((2, _BINS))
    for row, chosen in enumerate((label, ~label)):
        weights = None if weight is None else weight[chosen]
        counts[row] = np.bincount(bins[chosen], weights=weights, minlength=_BINS)
    if comm.size > 1:
        mpi.sum_in_place(comm, counts)
    return counts[0], counts[1]


def _log_odds(probability: Any) -> Any:
    clipped = np.clip(probability, 1e-15, 1 - 1e-15)
    return np.log(clipped) - np.log1p(-clipped)
