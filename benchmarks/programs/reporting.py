"""A run that reports: ``STORAGE NAME WORKERS REPORTS PAUSE [none|each|--hold]``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def train(config: dict[str, Any]) -> None:
    rank = hpctrain.get_context().get_world_rank()
    for step in range(config["reports"]):
        if config["saves"]:
            with hpctrain.checkpoint_dir() as directory:
                Path(directory, f"rank-{rank}.txt").write_text(f"{step}\n")
                hpctrain.report({"step": step}, Checkpoint.from_directory(directory))
        else:
            hpctrain.report({"step": step})
        time.sleep(config["pause"])


if __name__ == "__main__":
    storage, name, workers, reports, pause, *more = sys.argv[1:]
    DataParallelTrainer(
        train,
        train_loop_config={
            "reports": int(reports),
            "pause": float(pause),
            "saves": "each" in more,
        },
        scaling_config=ScalingConfig(
            num_workers=int(workers),
            slurm=SlurmConfig(sbatch_args=["--hold"] if "--hold" in more else []),
        ),
        run_config=RunConfig(storage_path=storage, name=name, verbose=0),
    ).fit()
