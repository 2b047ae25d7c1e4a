"""Keras on two ranks trains what one process trains, and goes on after a rank was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import FailureConfig, Result, WorkerError
from hpctrain.data import Dataset, from_numpy
from hpctrain.tensorflow import TensorflowConfig, TensorflowTrainer
from tests import runs

pytestmark = pytest.mark.mpi

EPOCHS, GLOBAL_BATCH = 4, 16


def rows() -> Dataset:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return from_numpy({"x": x, "y": x @ np.arange(4, dtype="float32")})


def make_model(keras: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model


def keep(name: str, weights: Any, **more: Any) -> None:
    """Write what a rank knows beside the run."""
    rank = hpctrain.get_context().get_world_rank()
    arrays = {f"w{i}": np.asarray(value) for i, value in enumerate(weights)}
    np.savez(hpctrain.artifact_dir() / f"{name}-{rank}.npz", **arrays, **more)


def kept(result: Result, name: str) -> list[dict[str, Any]]:
    """Return what the ranks wrote."""
    paths = (result.path / "artifacts" / f"{name}-{rank}.npz" for rank in (0, 1))
    return [dict(np.load(path)) for path in paths]


def train(config: dict[str, Any]) -> int:
    import tensorflow as tf

    from hpctrain.tensorflow import (
        ReportCheckpointCallback,
        TensorflowCheckpoint,
        prepare_dataset_shard,
    )

    context = hpctrain.get_context()

    class Kill(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if config["kill"] and epoch == 2 and context.world.attempt == 1:
                # Until the checkpoint of epoch 1, to which rank 1 gives nothing, is complete.
                hpctrain.get_all_reported_checkpoints(timeout_s=60)
                if context.get_world_rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    checkpoint = hpctrain.get_checkpoint()
    with strategy.scope():
        model = (
            TensorflowCheckpoint(checkpoint.path).get_model(trusted=True)
            if checkpoint
            else make_model(tf.keras)
        )
    shard = hpctrain.get_dataset_shard("train").to_tf(
        "x", "y", batch_size=GLOBAL_BATCH, shuffle=True
    )
    report = ReportCheckpointCallback()
    model.fit(
        prepare_dataset_shard(shard),
        initial_epoch=report.initial_epoch,
        epochs=EPOCHS,
        callbacks=[report, Kill()],
        verbose=0,
    )
    keep("end", model.get_weights(), tf_config=os.environ["TF_CONFIG"])
    return report.initial_epoch


def fit(storage: Path, loop: Any = train, *, kill: bool = False, **changes: Any) -> Result:
    return runs.fit(
        loop,
        storage,
        trainer=TensorflowTrainer,
        train_loop_config={"kill": kill},
        failure_config=FailureConfig(max_failures=1 if kill else 0),
        datasets={"train": rows()},
        **changes,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nothing disturbs."""
    return fit(tmp_path_factory.mktemp("whole"))


def batches_of_both_ranks() -> list[tuple[Any, Any]]:
    """Return what the ranks are given in each step, as batches of one process."""
    shards = [rows().shard(rank=rank, world_size=2) for rank in (0, 1)]
    together = []
    for _ in range(EPOCHS):
        epochs = [
            shard.iter_batches(batch_size=GLOBAL_BATCH // 2, shuffle=True) for shard in shards
        ]
        for parts in zip(*epochs, strict=True):
            together.append(tuple(np.concatenate([part[name] for part in parts]) for name in "xy"))
    return together


def test_both_ranks_have_the_parameters_of_one_process(whole: Result) -> None:
    import tf_keras

    first, second = kept(whole, "end")
    model = make_model(tf_keras)
    for x, y in batches_of_both_ranks():
        model.train_on_batch(x, y)
    for i, expected in enumerate(model.get_weights()):
        assert np.array_equal(first[f"w{i}"], second[f"w{i}"])
        # float32, and a mean of means is not rounded as a mean.
        np.testing.assert_allclose(first[f"w{i}"], expected, atol=2e-6)


def test_tf_config_has_the_same_workers_and_each_rank_its_own_place(whole: Result) -> None:
    first, second = (json.loads(str(rank["tf_config"])) for rank in kept(whole, "end"))
    assert first["cluster"] == second["cluster"]
    assert len(set(first["cluster"]["worker"])) == 2
    tasks = [config["task"] for config in (first, second)]
    assert tasks == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]


def test_a_killed_rank_is_started_again_and_training_goes_on_as_if_nothing_had_been(
    whole: Result, tmp_path: Path
) -> None:
    killed = fit(tmp_path, kill=True)
    assert len(killed.attempts) == 2
    assert "rank 1 of 2" in str(killed.attempts[0].cause)
    assert killed.return_value == 2, "two epochs were complete"
    assert killed.metrics_history == whole.metrics_history
    for was_killed, was_not in zip(kept(killed, "end"), kept(whole, "end"), strict=True):
        for name in was_not.keys() - {"tf_config"}:
            assert np.array_equal(was_killed[name], was_not[name])


def train_keras_3(config: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf

    from hpctrain.tensorflow import prepare_dataset_shard

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model(keras)
    shard = prepare_dataset_shard(
        hpctrain.get_dataset_shard("train").to_tf("x", "y", batch_size=GLOBAL_BATCH, shuffle=True)
    )

    @tf.function
    def step(batch: Any) -> Any:
        def of_this_rank(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                errors = tf.reduce_mean((model(x, training=True)[:, 0] - y) ** 2)
                loss = errors / strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(of_this_rank, args=batch), axis=None)

    batches = strategy.experimental_distribute_dataset(shard)
    for _ in range(EPOCHS):
        losses = [float(step(batch)) for batch in batches]
        hpctrain.report({"loss": float(np.mean(losses))})
    keep("keras-3", model.get_weights())
    model.fit(shard, verbose=0)


def test_keras_3_trains_by_a_loop_of_ones_own_and_its_fit_says_so(
    whole: Result, tmp_path: Path
) -> None:
    with pytest.raises(WorkerError, match=r"fit\(\), evaluate\(\) and predict\(\) of Keras 3 fail"):
        fit(tmp_path, train_keras_3, tensorflow_config=TensorflowConfig(legacy_keras=False))
    result = Result.from_path(tmp_path / "run")
    first, second = kept(result, "keras-3")
    for name, weights in first.items():
        assert np.array_equal(weights, second[name])
    reported = [metrics["loss"] for metrics in result.metrics_history]
    # The first epoch's batches and initial weights are those of Keras 2.
    assert reported[-1] < reported[0]
