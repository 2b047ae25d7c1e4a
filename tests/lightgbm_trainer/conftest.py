"""What the tests of LightGBMTrainer share: a small real data set, and a run on two ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightgbm")

from hpctrain import CheckpointConfig, Result
from hpctrain.lightgbm import LightGBMTrainer
from tests.gbdt.boosting import Fit, held_out, make_fit
from tests.imports import forks_of_one_import

_forks = forks_of_one_import("lightgbm")

PARAMS = {
    "objective": "binary",
    "metric": ["auc", "binary_logloss"],
    "num_leaves": 7,
    "min_data_in_leaf": 5,
}


@pytest.fixture(scope="session")
def frames() -> dict[str, Any]:
    """Tumours, in an order that says nothing."""
    from sklearn.datasets import load_breast_cancer

    return held_out(load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=1))


@pytest.fixture(scope="session")
def fit(frames: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Fit:
    return make_fit(LightGBMTrainer, PARAMS, frames, tmp_path_factory)


@pytest.fixture(scope="session")
def whole(fit: Fit) -> Result:
    """30 rounds on two ranks that nothing disturbs."""
    return fit(checkpoints=CheckpointConfig(checkpoint_frequency=10))
