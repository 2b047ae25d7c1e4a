"""Which metrics of XGBoost are maximised: what XGBoost says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

xgboost = pytest.importorskip("xgboost")

from hpctrain.gbdt import EarlyStopping  # noqa: E402

_RANKING = ["ndcg", "ndcg-", "ndcg@5", "ndcg@5-", "map", "map-", "map@3", "map@3-", "pre", "pre@2"]
_OTHERS = ["rmse", "mae", "mape", "logloss", "auc", "aucpr"]


@pytest.mark.parametrize("metric", [*_RANKING, *_OTHERS])
def test_early_stopping_looks_for_what_xgboost_looks_for(fit: Any, metric: str) -> None:
    import pandas

    random = np.random.default_rng(0)
    table = pandas.DataFrame({"a": random.random(60), "y": random.integers(0, 2, 60)})
    table["query"] = np.arange(60) // 10
    params = {"objective": "rank:ndcg", "eval_metric": metric, "eta": 1.0}
    result = fit(
        num_workers=0,
        datasets={
            "train": table,
            "valid": table.assign(y=random.integers(0, 2, 60)),
        },
        label_column="y",
        group_column="query",
        params=params,
        num_boost_round=4,
        early_stopping=EarlyStopping(rounds=9),
    )
    values = [metrics[f"valid-{metric}"] for metrics in result.metrics_history]
    rule = xgboost.callback.EarlyStopping(rounds=9)
    matrix = xgboost.DMatrix(table[["a"]], table["y"], group=[10] * 6)
    xgboost.train(
        params, matrix, 1, evals=[(matrix, "train")], callbacks=[rule], verbose_eval=False
    )
    best = np.argmax(values) if rule.maximize else np.argmin(values)
    assert result.metrics["best_round"] == int(best) + 1
    assert rule.maximize == (metric not in ("rmse", "mae", "mape", "logloss"))
