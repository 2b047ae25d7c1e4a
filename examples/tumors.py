"""From HDF5 to predictions in HDF5: standardise, train, score every row, on MPI ranks.

The data are scikit-learn's bundled breast cancer measurements, 30 of each of 569 tumours. The
scaler is fitted on the ranks, travels in the checkpoint, and is applied by the predictor. The same
script runs on a laptop, on a login node, inside sbatch or salloc, and under ``srun`` or
``mpiexec``::

    python examples/tumors.py --model xgboost     # or lightgbm, or torch
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.data import from_numpy, read_hdf5
from hpctrain.predict import BatchPredictor
from hpctrain.preprocessors import StandardScaler

ROUNDS = 30


def write_tumors(directory: Path) -> tuple[Path, Path]:
    """Write the rows to train on, and every fifth row, which is held out."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    tumors = load_breast_cancer()
    held_out = np.arange(len(tumors.target)) % 5 == 0
    paths = directory / "train.h5", directory / "held-out.h5"
    for path, chosen in zip(paths, (~held_out, held_out), strict=True):
        if not path.exists():
            columns = {
                "measured": tumors.data[chosen].astype("float32"),
                "benign": tumors.target[chosen].astype("float32"),
            }
            from_numpy(columns).write_hdf5(path)
    return paths


def make_network() -> Any:
    """Return the network of ``--model torch``, which the predictor needs too."""
    from torch import nn

    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))


def train_network(config: dict[str, Any]) -> None:
    """Train the network on this rank's rows."""
    import torch
    from torch import nn

    import hpctrain.torch
    from hpctrain.torch import TorchCheckpoint

    hpctrain.torch.enable_reproducibility(7)
    shard = hpctrain.get_dataset_shard("train")
    model = hpctrain.torch.prepare_model(make_network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    while shard.epoch < config["epochs"]:
        total = 0.0
        for batch in shard.iter_torch_batches(batch_size=32, shuffle=True):
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(batch["measured"]), batch["benign"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        with hpctrain.checkpoint_dir() as directory:
            saved = None
            if hpctrain.get_context().get_world_rank() == 0:
                saved = TorchCheckpoint.from_model(model, path=directory)
            hpctrain.report({"loss": total}, saved)


def make_trainer(model: str, train: Path, **common: Any) -> Any:
    """Return the trainer of a model."""
    common |= {
        "datasets": {"train": read_hdf5(train)},
        "preprocessor": StandardScaler(columns=["measured"]),
    }
    if model == "torch":
        from hpctrain.torch import TorchTrainer

        return TorchTrainer(train_network, train_loop_config={"epochs": 10}, **common)
    common |= {"label_column": "benign", "num_boost_round": ROUNDS}
    if model == "xgboost":
        from hpctrain.xgboost import XGBoostTrainer

        return XGBoostTrainer(params={"objective": "binary:logistic", "max_depth": 3}, **common)
    from hpctrain.lightgbm import LightGBMTrainer

    return LightGBMTrainer(params={"objective": "binary", "min_data_in_leaf": 5}, **common)


def make_predictor(model: str, checkpoint: Any) -> BatchPredictor:
    """Return what scores with a checkpoint of a model."""
    if model == "torch":
        from hpctrain.torch import TorchPredictor

        return BatchPredictor.from_checkpoint(checkpoint, TorchPredictor, model=make_network)
    if model == "xgboost":
        from hpctrain.xgboost import XGBoostPredictor

        return BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    from hpctrain.lightgbm import LightGBMPredictor

    return BatchPredictor.from_checkpoint(checkpoint, LightGBMPredictor)


def main() -> None:
    """Train, score the held-out rows, and print how well they are ranked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=["xgboost", "lightgbm", "torch"], default="xgboost")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--nodes", type=int, help="of Slurm; default: as many as are needed")
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    args = parser.parse_args()

    train, held_out = write_tumors(args.storage / "tumors")
    scaling = ScalingConfig(num_workers=args.workers, slurm=SlurmConfig(nodes=args.nodes))
    result = make_trainer(
        args.model,
        train,
        scaling_config=scaling,
        run_config=RunConfig(name=f"tumors-{args.model}", storage_path=args.storage),
    ).fit()
    scored = make_predictor(args.model, result.checkpoint).predict(
        read_hdf5(held_out),
        feature_columns=["measured"],
        keep_columns=["benign"],
        output=args.storage / f"{args.model}.h5",
        scaling_config=scaling,
        run_config=RunConfig(name=f"tumors-{args.model}-scores", storage_path=args.storage),
    )

    from sklearn.metrics import roc_auc_score

    columns = scored.to_numpy()
    auc = roc_auc_score(columns["benign"], columns["predictions"])
    print(f"held-out AUC        {auc:.4f}")
    print(f"predictions         {args.storage / args.model}.h5")


if __name__ == "__main__":
    main()
