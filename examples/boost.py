"""Boosted trees from an HDF5 file, with XGBoost or LightGBM, on as many ranks as wanted.

::

    python examples/boost.py                                 # two ranks of this machine
    python examples/boost.py --library lightgbm --workers 8  # on a login node: a Slurm job

The data are the tumours that ship with scikit-learn. The script writes them into a file first; with
data of your own leave that out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpctrain import CheckpointConfig, RunConfig, ScalingConfig
from hpctrain.data import read_hdf5
from hpctrain.gbdt import EarlyStopping, GBDTTrainer
from hpctrain.lightgbm import LightGBMTrainer
from hpctrain.xgboost import XGBoostTrainer

TRAINERS: dict[str, type[GBDTTrainer]] = {"xgboost": XGBoostTrainer, "lightgbm": LightGBMTrainer}
PARAMS = {
    "xgboost": {"objective": "binary:logistic", "eval_metric": ["logloss", "auc"], "max_depth": 3},
    "lightgbm": {"objective": "binary", "metric": ["binary_logloss", "auc"], "num_leaves": 7},
}


def write_tumours(path: Path) -> None:
    """Write samples [rows, 30] and labels [rows], the last fifth of them to be held out."""
    import h5py
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    samples, labels = load_breast_cancer(return_X_y=True)
    cut = len(labels) * 4 // 5
    with h5py.File(path, "w") as file:
        for group, rows in (("train", slice(cut)), ("valid", slice(cut, None))):
            file[f"{group}/cells"] = samples[rows].astype(np.float32)
            file[f"{group}/benign"] = labels[rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=TRAINERS, default="xgboost")
    parser.add_argument("--workers", type=int, default=2, help="MPI ranks")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    Path(arguments.storage).mkdir(exist_ok=True)
    file = Path(arguments.storage, "tumours.h5")
    if not file.exists():
        write_tumours(file)
    trainer = TRAINERS[arguments.library](
        datasets={name: read_hdf5(file, group=name) for name in ("train", "valid")},
        label_column="benign",
        params=PARAMS[arguments.library],
        num_boost_round=arguments.rounds,
        early_stopping=EarlyStopping(rounds=10, metric="valid-auc"),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=20, num_to_keep=2),
        ),
    )
    result = trainer.fit()
    best = max(metrics["valid-auc"] for metrics in result.metrics_history)
    print(f"held-out AUC  {best:.4f}, after {result.metrics['best_round']} rounds")
    print(f"checkpoint    {result.checkpoint.path if result.checkpoint else None}")


if __name__ == "__main__":
    main()
