"""Budgets of failures, and their end, with real ranks on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    FailureConfig,
    Result,
    WorkerError,
)
from hpctrain.execute.failure_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS
from tests import runs

pytestmark = pytest.mark.mpi


def fit(train: Any, tmp_path: Path, **budgets: int) -> Result:
    return runs.fit(train, tmp_path, num_workers=1, failure_config=FailureConfig(**budgets))


def test_a_run_that_makes_no_progress_is_stopped_whatever_its_budget_and_says_so(
    tmp_path: Path,
) -> None:
    def train() -> None:
        import hpctrain

        if hpctrain.get_checkpoint() is None:
            hpctrain.report({"step": 1}, Checkpoint.from_dict({"step": 1}))
        # A report is no progress: nothing of it is left after the failure.
        hpctrain.report({"step": 2})
        raise ValueError("always here")

    with pytest.raises(WorkerError, match="always here") as caught:
        fit(train, tmp_path, max_failures=-1)
    said = f"{MAX_ATTEMPTS_WITHOUT_PROGRESS} attempts in a row ended without a newer checkpoint"
    assert said in str(caught.value)
    result = Result.from_path(tmp_path / "run")
    assert said in str(result.error)
    # The first one did make progress.
    assert len(result.attempts) == 1 + MAX_ATTEMPTS_WITHOUT_PROGRESS


def test_a_run_that_makes_progress_may_fail_as_often_as_its_budget_allows(tmp_path: Path) -> None:
    def train() -> None:
        import hpctrain

        checkpoint = hpctrain.get_checkpoint()
        step = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}))
        if step < 6:
            raise ValueError("a step and no further")

    result = fit(train, tmp_path, max_failures=-1)
    assert [m["step"] for m in result.metrics_history] == list(range(7))
    assert len(result.attempts) == 7


def test_a_person_who_calls_fit_again_begins_with_a_full_budget(tmp_path: Path) -> None:
    def train() -> None:
        raise ValueError("always here")

    for total in (2, 4):
        with pytest.raises(WorkerError):
            fit(train, tmp_path, max_failures=1)
        assert len(Result.from_path(tmp_path / "run").attempts) == total
