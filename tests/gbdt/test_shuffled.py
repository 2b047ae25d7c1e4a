"""Trees on a dataset that is shuffled anew each epoch: features and labels are of the same rows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.data import from_numpy

PARAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "xgboost": ("XGBoostTrainer", {"objective": "binary:logistic", "eval_metric": "error"}),
    "lightgbm": (
        "LightGBMTrainer",
        {"objective": "binary", "metric": "binary_error", "verbosity": -1},
    ),
}


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("ingest", ["memory", "stream"])
def test_trees_learn_what_is_in_shuffled_rows(tmp_path: Path, library: str, ingest: str) -> None:
    pytest.importorskip(library)
    x = np.random.default_rng(1).normal(size=40_000)
    # Larger than one batch of what reads it.
    dataset = from_numpy({"x": x, "y": (x > 0).astype(np.float64)}).random_shuffle()
    name, params = PARAMS[library]
    trainer = getattr(import_module(f"hpctrain.{library}"), name)
    result = trainer(
        params=params,
        label_column="y",
        num_boost_round=3,
        ingest=ingest,
        datasets={"train": dataset},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    ).fit()
    (error,) = (value for key, value in result.metrics.items() if key.endswith("error"))
    assert error < 0.01
