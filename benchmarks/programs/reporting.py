"""A run that reports: ``STORAGE NAME WORKERS REPORTS PAUSE [none|own|copies|states|--hold]``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def train(config: dict[str, Any]) -> None:
    report = {"own": report_own, "copies": report_copy, "states": report_state}.get(
        config["saving"], hpctrain.report
    )
    for step in range(config["reports"]):
        report({"step": step})
        time.sleep(config["pause"])


def report_own(metrics: dict[str, Any]) -> None:
    """Save into a directory inside the checkpoint."""
    rank = hpctrain.get_context().get_world_rank()
    with hpctrain.checkpoint_dir() as directory:
        Path(directory, f"rank-{rank}.txt").write_text("saved\n")
        hpctrain.report(metrics, Checkpoint.from_directory(directory))


def report_copy(metrics: dict[str, Any]) -> None:
    """Save into a directory of one's own, as Ray's examples do."""
    rank = hpctrain.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, f"rank-{rank}.txt").write_text("saved\n")
        hpctrain.report(metrics, Checkpoint.from_directory(directory))


def report_state(metrics: dict[str, Any]) -> None:
    """Save a state, of which each rank writes a part."""
    import torch

    import hpctrain.torch

    hpctrain.torch.report_state(metrics, tensors={"zeros": torch.zeros(4096)})


if __name__ == "__main__":
    storage, name, workers, reports, pause, *more = sys.argv[1:]
    DataParallelTrainer(
        train,
        train_loop_config={
            "reports": int(reports),
            "pause": float(pause),
            "saving": more[0] if more else "none",
        },
        scaling_config=ScalingConfig(
            num_workers=int(workers),
            slurm=SlurmConfig(sbatch_args=["--hold"] if "--hold" in more else []),
        ),
        run_config=RunConfig(storage_path=storage, name=name, verbose=0),
    ).fit()
