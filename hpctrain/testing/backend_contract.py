"""`BackendContract`: the tests that every `Backend` must pass, for authors of backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

import hpctrain
from hpctrain import (
    BackendConfig,
    Checkpoint,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerError,
    environ,
)


class BackendContract:
    """Run a backend on real ranks of this machine. Subclass it in a test module.

    Examples
    --------
    ::

        class TestMyBackend(BackendContract):
            backend_config = MyConfig()
    """

    backend_config: ClassVar[BackendConfig]
    """Settings of the backend under test."""

    def test_ranks_train_and_resume_from_their_checkpoint(self, tmp_path: Path) -> None:
        """Hold that a run trains, fails, resumes at the next step, and returns."""
        with pytest.raises(WorkerError, match=r"rank 1 of 2 .*stopped on purpose"):
            self._fit(train_and_stop_once, tmp_path, num_workers=2)
        result = self._fit(train_and_stop_once, tmp_path, num_workers=2)
        assert [metrics["step"] for metrics in result.metrics_history] == [0, 1, 2]
        assert result.return_value == 2, "the second attempt begins at the step that failed"

    def test_one_rank_trains_in_this_interpreter_and_leaves_it_as_it_was(
        self, tmp_path: Path
    ) -> None:
        """Hold that ``num_workers=0`` works twice, and leaves no variable behind."""
        before = set(environ.environment())
        for name in ("one", "two"):
            result = self._fit(train_one_step, tmp_path, num_workers=0, name=name)
            assert result.return_value == (0, 1)
        assert set(environ.environment()) == before

    def _fit(
        self, train: Any, tmp_path: Path, *, num_workers: int, name: str = "contract"
    ) -> Result:
        return DataParallelTrainer(
            train,
            backend_config=self.backend_config,
            scaling_config=ScalingConfig(num_workers=num_workers),
            run_config=RunConfig(
                storage_path=tmp_path, name=name, launcher="local" if num_workers else "auto"
            ),
        ).fit()


def train_and_stop_once() -> int:
    """Report three steps with checkpoints; raise on rank 1 in the third step of attempt 1."""
    context = hpctrain.get_context()
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    for step in range(first, 3):
        if step == 2 and context.world.attempt == 1 and context.get_world_rank() == 1:
            # This rank gave no part of the checkpoint of step 1, so report() did not wait for it.
            hpctrain.get_all_reported_checkpoints(timeout_s=60)
            raise RuntimeError("stopped on purpose")
        saved = Checkpoint.from_dict({"step": step})
        hpctrain.report({"step": step}, saved if context.get_world_rank() == 0 else None)
    return first


def train_one_step() -> tuple[int, int]:
    """Report one step; return rank and world size."""
    context = hpctrain.get_context()
    hpctrain.report({"step": 0})
    return context.get_world_rank(), context.get_world_size()
