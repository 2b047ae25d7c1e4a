"""A training function in this interpreter: how it ends, whatever it does to the interpreter."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    ConfigError,
    DataParallelTrainer,
    Result,
    RunConfig,
    RunContext,
    ScalingConfig,
    UserCallback,
    WorkerError,
)
from hpctrain.rundir.ledger import read_events
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
    (end,) = (e for e in read_events(RunPaths(tmp_path / "run")) if e["event"] == "attempt-ended")
    assert f"SystemExit: {code}" in end["cause"]
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


def test_a_second_run_in_another_thread_is_refused_and_the_first_keeps_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()
    # The training function is pickled; events cannot be.
    monkeypatch.setattr(sys, "hpctrain_test", (began, may_end), raising=False)

    def wait() -> None:
        import sys

        began, may_end = sys.hpctrain_test  # type: ignore[attr-defined]
        began.set()
        assert may_end.wait(60)
        hpctrain.report({"loss": 1.0})

    results: list[Any] = []
    first = threading.Thread(
        target=lambda: results.append(make_trainer(wait, tmp_path / "first").fit())
    )
    first.start()
    try:
        assert began.wait(60)
        with pytest.raises(ConfigError, match="run trains in this interpreter"):
            make_trainer(wait, tmp_path / "second").fit()
        # As where both begin at the same moment.
        monkeypatch.setattr("hpctrain.launch.fit.refuse_nested_fit", lambda _: None)
        with pytest.raises(ConfigError, match="another run with num_workers=0 trains"):
            make_trainer(wait, tmp_path / "second").fit()
    finally:
        may_end.set()
        first.join(60)
    assert [result.metrics["loss"] for result in results] == [1.0]
    # It may be run now: nothing of it was begun.
    assert make_trainer(wait, tmp_path / "second").fit().metrics["loss"] == 1.0


class FollowUp(UserCallback):
    """Trains the next stage once a run has ended."""

    fatal = True

    def __init__(self, storage: Path) -> None:
        self.storage = storage

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        make_trainer(lambda: hpctrain.report({"stage": 2}), self.storage).fit()


def test_a_callback_may_run_another_one_at_the_end(tmp_path: Path) -> None:
    trainer = make_trainer(lambda: hpctrain.report({"stage": 1}), tmp_path / "first")
    trainer.run_config = replace(trainer.run_config, callbacks=[FollowUp(tmp_path / "second")])
    assert trainer.fit().metrics["stage"] == 1
    assert Result.from_path(tmp_path / "second" / "run").metrics["stage"] == 2
