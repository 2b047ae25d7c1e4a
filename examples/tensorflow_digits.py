"""Train a Keras model on handwritten digits over MPI ranks, and score digits with it.

The training function is one for ``MultiWorkerMirroredStrategy``: it finds the other workers in
TF_CONFIG, which hpctrain writes. The same script runs on a laptop, on a login node, inside sbatch
or salloc, and under ``srun`` or ``mpiexec``, with the same losses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import FailureConfig, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.data import Dataset, from_numpy
from hpctrain.predict import BatchPredictor
from hpctrain.tensorflow import TensorflowPredictor, TensorflowTrainer


def make_model() -> Any:
    """Return the model, compiled."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(7)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPool2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train_digits(config: dict[str, Any]) -> None:
    """Train; the callback reports and saves after each epoch."""
    import tensorflow as tf

    from hpctrain.tensorflow import (
        ReportCheckpointCallback,
        TensorflowCheckpoint,
        prepare_dataset_shard,
    )

    # Before anything else of TensorFlow is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # A batch is that of all ranks together, and each takes its part of it.
    batches = prepare_dataset_shard(
        hpctrain.get_dataset_shard("train").to_tf(
            "image", "digit", batch_size=config["batch_size"], shuffle=True
        )
    )
    checkpoint = hpctrain.get_checkpoint()
    with strategy.scope():
        if checkpoint:
            # tf_keras may run code of a checkpoint; this one is the run's own.
            model = TensorflowCheckpoint(checkpoint.path).get_model(trusted=True)
        else:
            model = make_model()
    report = ReportCheckpointCallback()
    model.fit(
        batches,
        initial_epoch=report.initial_epoch,
        epochs=config["epochs"],
        callbacks=[report],
        verbose=0,
    )


def load_digits() -> tuple[Dataset, Dataset]:
    """Return the images to train on, and every fifth one, which is held out."""
    import numpy as np
    from sklearn import datasets

    digits = datasets.load_digits()
    held_out = np.arange(len(digits.target)) % 5 == 0
    train, test = (
        from_numpy(
            {
                "image": (digits.images[chosen, :, :, None] / 16).astype("float32"),
                "digit": digits.target[chosen].astype("int32"),
            }
        )
        for chosen in (~held_out, held_out)
    )
    return train, test


def main() -> None:
    """Train, score the held-out images, and print how many were read right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-workers", type=int, default=2, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage-path", type=Path, default=Path("hpctrain_runs"))
    parser.add_argument("--name", default="tensorflow-digits", help="the same name resumes it")
    parser.add_argument("--max-failures", type=int, default=1, help="restarts of failed ranks")
    arguments = parser.parse_args()

    train, held_out = load_digits()
    scaling = ScalingConfig(
        num_workers=arguments.num_workers, slurm=SlurmConfig(nodes=arguments.nodes)
    )
    result = TensorflowTrainer(
        train_digits,
        train_loop_config={"epochs": arguments.epochs, "batch_size": 64},
        scaling_config=scaling,
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage_path,
            failure_config=FailureConfig(max_failures=arguments.max_failures),
        ),
        datasets={"train": train},
    ).fit()
    scored = BatchPredictor.from_checkpoint(
        result.checkpoint, TensorflowPredictor, trusted=True
    ).predict(
        held_out,
        feature_columns=["image"],
        keep_columns=["digit"],
        output=arguments.storage_path / f"{arguments.name}.h5",
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=f"{arguments.name}-scores", storage_path=arguments.storage_path),
    )
    columns = scored.to_numpy()
    right = (columns["predictions"].argmax(axis=1) == columns["digit"]).mean()
    print(f"loss                {result.metrics['loss']:.6f}")
    print(f"held-out accuracy   {right:.4f}")
    print(f"run directory       {result.path}")


if __name__ == "__main__":
    main()
