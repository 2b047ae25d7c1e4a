"""The booster of a checkpoint, used by itself on data frames with categories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hpctrain import CheckpointConfig, RunConfig, ScalingConfig
from hpctrain.lightgbm import LightGBMCheckpoint, LightGBMTrainer

MEANS = {"a": 0.0, "b": 30.0, "c": 10.0, "d": 20.0}


def table(order: str) -> pandas.DataFrame:
    kind = pandas.Categorical(list("abcd") * 60, categories=list(order))
    return pandas.DataFrame({"x": np.arange(len(kind)) % 7, "kind": kind})


def train(folder: Path, **changes: Any) -> Any:
    rows = table("dacb")
    result = LightGBMTrainer(
        datasets={"train": rows.assign(y=rows["kind"].astype(str).map(MEANS))},
        label_column="y",
        params={"learning_rate": 0.5, "min_data_in_leaf": 1, "min_data_per_group": 1},
        num_boost_round=30,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            storage_path=folder, verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1)
        ),
        **changes,
    ).fit()
    assert result.checkpoint is not None
    return LightGBMCheckpoint.from_checkpoint(result.checkpoint).get_model()


@pytest.mark.parametrize("ingest", ["memory", "stream"])
def test_a_data_frame_with_its_categories_in_another_order_is_scored_alike(
    tmp_path: Path, ingest: str
) -> None:
    booster = train(tmp_path, ingest=ingest)
    assert booster.pandas_categorical == [["a", "b", "c", "d"]]
    wanted = list(MEANS.values()) * 60
    for order in ("abcd", "dcba", "zdacb"):
        assert np.allclose(booster.predict(table(order)), wanted, atol=0.1)
    with pytest.raises(ValueError, match="categorical_feature do not match"):
        booster.predict(table("abcd").astype({"kind": "category", "x": "category"}))
