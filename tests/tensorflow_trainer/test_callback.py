"""One rank, in this interpreter: what the callback reports and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras

from hpctrain import ConfigError, Result, RunConfig, ScalingConfig
from hpctrain.tensorflow import ReportCheckpointCallback, TensorflowTrainer

X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")


def fit(storage: Path, *, stop: Any = None, **arguments: Any) -> Result:
    def train() -> int:
        model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        report = ReportCheckpointCallback(**arguments)
        history = model.fit(X, X[:, 0], batch_size=4, epochs=3, callbacks=[report], verbose=0)
        return len(history.epoch)

    return TensorflowTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=storage, name="run", verbose=0, stop=stop),
    ).fit()


def test_each_epoch_is_reported_with_its_checkpoint(tmp_path: Path) -> None:
    result = fit(tmp_path)
    assert [set(metrics) for metrics in result.metrics_history] == [{"loss", "mae"}] * 3
    epochs = [checkpoint.get_metadata()["epoch"] for checkpoint, _ in result.best_checkpoints]
    assert sorted(epochs) == [1, 2, 3]


def test_batches_are_reported_and_the_end_is_saved(tmp_path: Path) -> None:
    result = fit(
        tmp_path,
        checkpoint_on=["train_end"],
        report_metrics_on="train_batch_end",
        metrics={"train_loss": "loss"},
    )
    assert [set(metrics) for metrics in result.metrics_history] == [{"train_loss"}] * 7
    assert len(result.best_checkpoints) == 1


def test_a_loop_of_ones_own_may_leave_the_logs_out(tmp_path: Path) -> None:
    def train() -> None:
        report = ReportCheckpointCallback(checkpoint_on="train_end")
        report.on_epoch_begin(0)
        report.on_epoch_end(0)

    result = TensorflowTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert len(result.metrics_history) == 1


def test_training_ends_after_the_report_at_which_it_should_stop(tmp_path: Path) -> None:
    assert fit(tmp_path, stop={"loss": 0.0}).return_value < 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"checkpoint_on": "epoch_over"},
            r"checkpoint_on has 'epoch_over'\. Keras has train_begin",
        ),
        ({"metrics": ["auc"]}, r"names 'auc', and Keras tells 'loss', 'mae'"),
    ],
)
def test_an_event_or_a_metric_that_does_not_exist_is_named(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **arguments)
