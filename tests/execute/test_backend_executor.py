"""A BackendExecutor by itself: workers, a backend, a training function."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import BackendConfig, BackendExecutor, Checkpoint, ConfigError, WorkerError

pytestmark = pytest.mark.mpi


def train(config: dict[str, Any]) -> str:
    import torch
    from torch import distributed

    rank = hpctrain.get_context().get_world_rank()
    begun = hpctrain.get_checkpoint()
    first = 0 if begun is None else begun.to_dict()["step"] + 1
    for step in range(first, config["steps"]):
        total = torch.tensor([float(rank + step)])
        distributed.all_reduce(total)
        checkpoint = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"total": total.item(), "rank": rank}, checkpoint)
    return f"rank {rank}, {os.environ.get('HOOKED')}"


def hook() -> None:
    import os

    os.environ["HOOKED"] = "hooked"


def test_it_runs_a_training_function_from_start_to_shutdown(tmp_path: Path) -> None:
    from hpctrain.torch import TorchConfig

    executor = BackendExecutor(TorchConfig(), num_workers=2)
    with pytest.raises(ValueError, match=r"has no workers; call start\(\) first"):
        executor.start_training(train)
    executor.start(hook)
    try:
        assert executor.is_started()
        assert len(set(executor.get_worker_group().execute(os.getpid))) == 2
        kept = Checkpoint.from_dict({"step": 0})
        executor.start_training(train, {"steps": 3}, checkpoint=kept)
        for step in (1, 2):
            metrics = executor.get_next_results()
            assert metrics == [{"total": 2.0 * step + 1, "rank": rank} for rank in (0, 1)]
        newest = executor.get_checkpoint()
        assert newest is not None
        assert newest.to_dict() == {"step": 2}
        root = Path(newest.path).parents[1]
        assert executor.get_next_results() is None
        assert executor.finish_training() == ["rank 0, hooked", "rank 1, hooked"]
    finally:
        executor.shutdown()
    assert not executor.is_started()
    assert not root.exists()


def test_a_rank_that_fails_is_named() -> None:
    def fail() -> None:
        if hpctrain.get_context().get_world_rank() == 1:
            raise RuntimeError("no more")

    executor = BackendExecutor(BackendConfig(), num_workers=2)
    executor.start()
    try:
        executor.start_training(fail)
        with pytest.raises(WorkerError, match=r"rank 1 of 2 on .*no more"):
            executor.finish_training()
    finally:
        executor.shutdown(graceful_termination=False)


def test_a_hook_that_fails_leaves_nothing() -> None:
    before = set(Path(tempfile.gettempdir()).glob("hpctrain-executor-*"))
    executor = BackendExecutor(BackendConfig())
    with pytest.raises(ZeroDivisionError):
        executor.start(lambda: 1 / 0)
    assert not executor.is_started()
    assert set(Path(tempfile.gettempdir()).glob("hpctrain-executor-*")) <= before


def test_without_a_backend_it_says_what_comes_first() -> None:
    with pytest.raises(ConfigError, match="a BackendConfig comes first"):
        BackendExecutor(2)  # type: ignore[arg-type]


def test_ranks_get_the_list_of_checkpoints() -> None:
    def save() -> list[int]:
        rank = hpctrain.get_context().get_world_rank()
        for step in (1, 2):
            checkpoint = Checkpoint.from_dict({"step": step}) if rank == 0 else None
            hpctrain.report({"step": step}, checkpoint)
        found = hpctrain.get_all_reported_checkpoints(timeout_s=60.0)
        return [reported.metrics["step"] for reported in found]

    executor = BackendExecutor(BackendConfig(), num_workers=2)
    executor.start()
    try:
        executor.start_training(save)
        assert executor.finish_training() == [[1, 2], [1, 2]]
    finally:
        executor.shutdown()
