"""Train on a directory of Parquet files, as Dask and Spark write them.

What goes beyond one pass over the rows (joins, groups, sorting) is for Dask or Spark. Their output
is a directory of parts, and that is a dataset::

    frame.to_parquet("digits")                   # Dask
    frame.write.parquet("digits")                # Spark
    python examples/parquet_parts.py digits

Columns that Dask's ``partition_on=["label"]`` or Spark's ``partitionBy("label")`` puts into the
names of directories are read too.

Without a directory, scikit-learn's handwritten digits are written as such parts first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import Checkpoint, DataConfig, RunConfig, ScalingConfig
from hpctrain.data import read_parquet
from hpctrain.torch import TorchTrainer


def to_image(batch: dict[str, Any]) -> dict[str, Any]:
    """Make one column of shape [rows, pixels] of a column for each pixel."""
    import numpy as np

    pixels = [array for name, array in batch.items() if name.startswith("pixel")]
    return {"image": np.stack(pixels, axis=1).astype("float32") / 16, "label": batch["label"]}


def train(config: dict[str, Any]) -> float:
    """Train a linear classifier, and return its accuracy on the held-out rows."""
    import torch
    from torch import nn

    import hpctrain.torch

    torch.manual_seed(7)
    shard = hpctrain.get_dataset_shard("train")
    model = nn.Linear(shard.schema()["image"].shape[0], 10)
    if checkpoint := hpctrain.get_checkpoint():
        model.load_state_dict(torch.load(checkpoint.path / "model.pt", weights_only=True))
        # With any number of ranks, also in the middle of an epoch.
        shard.load_state_dict(json.loads((checkpoint.path / "position.json").read_text()))
    model = hpctrain.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    accuracy = 0.0
    while shard.epoch < config["epochs"]:
        for batch in shard.iter_torch_batches(batch_size=32, shuffle=True):
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model)
        with hpctrain.checkpoint_dir() as directory:
            saved = None
            if hpctrain.get_context().get_world_rank() == 0:
                plain = getattr(model, "module", model)
                torch.save(plain.state_dict(), f"{directory}/model.pt")
                Path(directory, "position.json").write_text(json.dumps(shard.state_dict()))
                saved = Checkpoint.from_directory(directory)
            hpctrain.report({"epoch": shard.epoch, "accuracy": accuracy}, saved)
    return accuracy


def evaluate(model: Any) -> float:
    """Return the share of held-out rows that a model is right about; every rank sees them all."""
    import torch

    right = total = 0
    with torch.no_grad():
        for batch in hpctrain.get_dataset_shard("held_out").iter_torch_batches():
            right += (model(batch["image"]).argmax(1) == batch["label"]).sum().item()
            total += len(batch["label"])
    return right / total


def write_parts(directory: Path) -> None:
    """Write scikit-learn's digits as Dask would."""
    from sklearn.datasets import load_digits

    frame = load_digits(as_frame=True).frame.rename(columns={"target": "label"})
    directory.mkdir(parents=True)
    for part in range(12):
        frame.iloc[part::12].to_parquet(directory / f"part.{part}.parquet")


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", type=Path, nargs="?", help="directory of Parquet files")
    parser.add_argument("--workers", type=int, default=2, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    if arguments.parts is None:
        arguments.parts = Path(arguments.storage, "digits-parts")
        if not arguments.parts.exists():
            write_parts(arguments.parts)
    rows = read_parquet(arguments.parts).map_batches(to_image)
    training, held_out = rows.train_test_split(0.2, shuffle=True, seed=7)
    result = TorchTrainer(
        train,
        train_loop_config={"epochs": arguments.epochs},
        datasets={"train": training, "held_out": held_out},
        dataset_config=DataConfig(datasets_to_split=["train"]),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(name=arguments.name, storage_path=arguments.storage),
    ).fit()
    print(f"held-out accuracy  {result.return_value:.4f}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
