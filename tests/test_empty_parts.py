"""A rank that reports an empty directory has no part in the checkpoint."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointUploadMode,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
)


def train(config: dict[str, Any]) -> None:
    rank = hpctrain.get_context().get_world_rank()
    for writer in (0, 1):
        for mode in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            with tempfile.TemporaryDirectory() as directory:
                if rank == writer:
                    Path(directory, "model").write_text(f"{rank}")
                hpctrain.report(
                    {"writer": writer},
                    checkpoint=Checkpoint(directory),
                    checkpoint_dir_name=f"{mode.value}-by-{rank}",
                    checkpoint_upload_mode=mode,
                )
                hpctrain.get_all_reported_checkpoints()
        with hpctrain.checkpoint_dir() as directory:
            if rank == writer:
                Path(directory, "model").write_text(f"{rank}")
            hpctrain.report({"writer": writer}, checkpoint=Checkpoint(directory))


def test_only_ranks_that_give_a_file_have_a_part(tmp_path: Path) -> None:
    result = DataParallelTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
        metadata={"git": "abc"},
    ).fit()
    saved = [(c.path.name, (c.path / "model").read_text()) for c, _ in result.best_checkpoints]
    assert saved == [
        ("sync-by-0", "0"),
        ("async-by-0", "0"),
        ("000003", "0"),
        ("sync-by-1", "1"),
        ("async-by-1", "1"),
        ("000006", "1"),
    ]
    assert all(c.get_metadata() == {"git": "abc"} for c, _ in result.best_checkpoints)
