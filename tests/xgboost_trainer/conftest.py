"""What the tests of XGBoostTrainer share: a small real data set, and a run on two ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("xgboost")

from hpctrain import CheckpointConfig, Result
from hpctrain.xgboost import XGBoostTrainer
from tests.gbdt.boosting import Fit, held_out, make_fit
from tests.imports import forks_of_one_import

_forks = forks_of_one_import("xgboost")

PARAMS = {
    "objective": "binary:logistic",
    "eval_metric": ["logloss", "error"],
    "max_depth": 3,
    "eta": 0.2,
}


@pytest.fixture(scope="session")
def frames() -> dict[str, Any]:
    """Tumours, to one decimal: few distinct values, so quantiles do not depend on the ranks."""
    from sklearn.datasets import load_breast_cancer

    return held_out(load_breast_cancer(as_frame=True).frame.round(1))


@pytest.fixture(scope="session")
def fit(frames: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Fit:
    return make_fit(XGBoostTrainer, PARAMS, frames, tmp_path_factory)


@pytest.fixture(scope="session")
def whole(fit: Fit) -> Result:
    """30 rounds on two ranks that nothing disturbs."""
    return fit(checkpoints=CheckpointConfig(checkpoint_frequency=10))
