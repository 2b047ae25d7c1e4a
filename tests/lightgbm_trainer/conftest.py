"""What the tests of LightGBMTrainer share: a small real data set, and a run on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightgbm")

from hpctrain import CheckpointConfig, Result, RunConfig, ScalingConfig
from hpctrain.lightgbm import LightGBMTrainer

PARAMS = {
    "objective": "binary",
    "metric": ["auc", "binary_logloss"],
    "num_leaves": 7,
    "min_data_in_leaf": 5,
}
Fit = Callable[..., Result]


@pytest.fixture(scope="session")
def frames() -> dict[str, Any]:
    """Tumours, in an order that says nothing."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=1)
    table.columns = [name.replace(" ", "_") for name in table.columns]
    table = table.reset_index(drop=True)
    held_out = table.index % 5 == 0
    return {
        "train": table[~held_out].reset_index(drop=True),
        "valid": table[held_out].reset_index(drop=True),
    }


@pytest.fixture(scope="session")
def fit(frames: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Fit:
    def fit(
        *,
        num_workers: int = 2,
        run: RunConfig | None = None,
        checkpoints: CheckpointConfig | None = None,
        **changes: Any,
    ) -> Result:
        storage: Path = tmp_path_factory.mktemp("runs")
        arguments = {
            "datasets": frames,
            "label_column": "target",
            "params": PARAMS,
            "num_boost_round": 30,
            "scaling_config": ScalingConfig(num_workers=num_workers),
            "run_config": run
            or RunConfig(
                storage_path=storage,
                name="run",
                verbose=0,
                launcher="local" if num_workers else "auto",
                checkpoint_config=checkpoints or CheckpointConfig(),
            ),
        }
        return LightGBMTrainer(**{**arguments, **changes}).fit()

    return fit


@pytest.fixture(scope="session")
def whole(fit: Fit) -> Result:
    """30 rounds on two ranks that nothing disturbs."""
    return fit(checkpoints=CheckpointConfig(checkpoint_frequency=10))
