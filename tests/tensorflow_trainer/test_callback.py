"""One rank, in this interpreter: what the callback reports and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras

from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    ConfigError,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from hpctrain.tensorflow import ReportCheckpointCallback, TensorflowTrainer
from tests import runs

X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")


def fit(
    storage: Path,
    *,
    stop: Any = None,
    validation_config: ValidationConfig | None = None,
    **arguments: Any,
) -> Result:
    def train() -> int:
        model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        report = ReportCheckpointCallback(**arguments)
        history = model.fit(X, X[:, 0], batch_size=4, epochs=3, callbacks=[report], verbose=0)
        return len(history.epoch)

    return runs.fit(
        train,
        storage,
        num_workers=0,
        trainer=TensorflowTrainer,
        stop=stop,
        validation_config=validation_config,
    )


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


def test_a_metric_with_a_value_for_each_class_is_reported_as_a_list(tmp_path: Path) -> None:
    def train() -> None:
        report = ReportCheckpointCallback(checkpoint_on="train_end")
        report.on_epoch_begin(0)
        report.on_epoch_end(0, {"loss": np.array([2.0]), "f1": np.array([0.5, 0.25])})

    result = runs.fit(train, tmp_path, num_workers=0, trainer=TensorflowTrainer)
    assert result.metrics_history == [{"loss": 2.0, "f1": [0.5, 0.25]}]


def fit_with_validation(storage: Path, *, score: str, freq: int, **arguments: Any) -> Result:
    def train() -> None:
        model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = (X, X[:, 0])
        report = ReportCheckpointCallback(**arguments)
        model.fit(
            *data,
            epochs=4,
            callbacks=[report],
            verbose=0,
            validation_data=data if freq else None,
            validation_freq=freq or 1,
        )

    best = CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute=score, checkpoint_score_order="min"
    )
    return runs.fit(
        train, storage, num_workers=0, trainer=TensorflowTrainer, checkpoint_config=best
    )


@pytest.mark.parametrize(
    ("metrics", "score"),
    [(None, "val_loss"), (["loss", "val_loss"], "val_loss"), ({"best": "val_loss"}, "best")],
)
def test_a_validation_every_other_epoch_may_score_checkpoints(
    tmp_path: Path, metrics: Any, score: str
) -> None:
    result = fit_with_validation(tmp_path, score=score, freq=2, metrics=metrics)
    assert [score in reported for reported in result.metrics_history] == [False, True] * 2
    assert [saved.path.name for saved, _ in result.best_checkpoints] == ["000004"]


@pytest.mark.parametrize(("score", "freq"), [("lss", 2), ("val_lss", 1), ("lss", 0)])
def test_a_score_that_no_epoch_has_is_refused_at_the_first_that_could(
    tmp_path: Path, score: str, freq: int
) -> None:
    with pytest.raises(ConfigError, match=f"report 1 has no metric '{score}'"):
        fit_with_validation(tmp_path, score=score, freq=freq)


def test_training_ends_after_the_report_at_which_it_should_stop(tmp_path: Path) -> None:
    assert fit(tmp_path, stop={"loss": 0.0}).return_value < 3


@pytest.mark.parametrize(("reports", "complete"), [(1, 0), (2, 1), (4, 1)])
def test_an_epoch_that_is_cut_short_by_a_stop_is_not_counted_as_complete(
    tmp_path: Path, reports: int, complete: int
) -> None:
    # Of each epoch's two batches, and of its end.
    result = fit(
        tmp_path, report_metrics_on="train_batch_end", stop={"training_iteration": reports}
    )
    assert len(result.metrics_history) == reports + 1
    assert result.checkpoint.get_metadata() == {"epoch": complete}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"checkpoint_on": "epoch_over"},
            r"checkpoint_on has 'epoch_over'\. Keras has train_begin",
        ),
        ({"metrics": ["auc"]}, r"names 'auc', and Keras gives 'loss', 'mae'"),
    ],
)
def test_an_event_or_a_metric_that_does_not_exist_is_named(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **arguments)


def test_the_models_are_validated(tmp_path: Path) -> None:
    def validate(checkpoint: Checkpoint, factor: int) -> dict[str, Any]:
        return {"validated": factor}

    task = ValidationTaskConfig(fn_kwargs={"factor": 7})
    result = fit(tmp_path, validation_config=ValidationConfig(fn=validate), validation=task)
    assert [metrics["validated"] for _, metrics in result.best_checkpoints] == [7, 7, 7]
