"""A `TensorflowTrainer` is a trial, with what the space chooses of its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import RunConfig, ScalingConfig, tune
from hpctrain.tensorflow import TensorflowTrainer


def train(config: Mapping[str, Any]) -> None:
    import tensorflow as tf

    weight = tf.Variable(0.0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.square(weight - 1.0)
        weight.assign_sub(config["rate"] * tape.gradient(loss, weight))
        hpctrain.report({"loss": float(loss)})


def test_the_better_rate_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    results = tune.Tuner(
        TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=1)),
        param_space={"train_loop_config": {"rate": tune.grid_search([0.0, 0.4])}},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path), verbose=1),
    ).fit()
    assert not results.errors
    assert [len(result.metrics_history) for result in results] == [3, 3]
    assert results[0].metrics["loss"] == 1.0
    assert results.get_best_result().path == results[1].path
