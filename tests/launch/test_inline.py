"""A training function in this interpreter: how it ends, whatever it does to the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, WorkerError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status


class SilentError(Exception):
    """Lacks the field that its message has."""

    def __str__(self) -> str:
        return self.args[1]


def make_trainer(train: Callable[[], Any], storage: str | Path) -> DataParallelTrainer:
    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=str(storage), verbose=0),
    )


def test_an_exception_without_a_message_fails_the_run(tmp_path: Path) -> None:
    def train() -> None:
        hpctrain.report({"loss": 1.0})
        raise SilentError("only one")

    with pytest.raises(SilentError):
        make_trainer(train, tmp_path).fit()
    status = read_status(RunPaths(tmp_path / "run"))
    assert status is not None
    assert status.state is RunState.FAILED
    assert "SilentError: (no message: IndexError in its __str__)" in (status.error or "")
    # Not followed as if it were still running.
    result = make_trainer(lambda: hpctrain.report({"loss": 0.5}), tmp_path).fit()
    assert result.metrics["loss"] == 0.5


@pytest.mark.parametrize("code", [0, 3, None])
def test_an_exit_of_the_training_function_is_an_error_of_the_run(
    tmp_path: Path, code: int | None
) -> None:
    def train() -> None:
        raise SystemExit(code)

    with pytest.raises(WorkerError, match=f"SystemExit: {code}"):
        make_trainer(train, tmp_path).fit()
    status = read_status(RunPaths(tmp_path / "run"))
    assert status is not None
    assert status.state is RunState.FAILED


def test_the_training_function_may_change_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def train() -> None:
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        hpctrain.report({"loss": 1.0})

    result = make_trainer(train, "runs").fit()
    assert result.path == str(tmp_path / "runs" / "run")
    assert result.metrics["loss"] == 1.0
