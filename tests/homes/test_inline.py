"""One rank in this interpreter: how a run there ends that does not come to its own end."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from hpctrain import (
    CheckpointError,
    Result,
    RunStoppedError,
)
from hpctrain.execute import executor_record
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.rundir.history import read_history
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from tests.runs import fit


def test_the_total_time_ends_it(tmp_path: Path) -> None:
    def train() -> None:
        import time

        import hpctrain

        while True:
            time.sleep(0.01)  # a step of work
            hpctrain.report({})

    with pytest.raises(RunStoppedError, match=r"because its total_time=.* is used up, at report"):
        fit(train, tmp_path, num_workers=0, total_time=timedelta(seconds=1))
    assert Result.from_path(tmp_path / "run").state == "stopped"
    # A job that Slurm starts again has what is left.
    assert read_history(read_events(RunPaths(tmp_path / "run"))).used_s >= 1


def test_a_long_epoch_does_not_look_like_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path / "run")

    def train() -> None:
        before, deadline = read_status(paths), time.monotonic() + 60
        while read_status(paths) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    monkeypatch.setattr(executor_record, "_LIFE_INTERVAL_S", 0.2)
    assert fit(train, tmp_path, num_workers=0).state == "finished"


def test_a_run_that_could_not_begin_does_not_look_as_if_it_were_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: RunCheckpoints, __: Callable[[], None]) -> None:
        raise CheckpointError("the checkpoints cannot be read just now.")

    def train() -> str:
        return "the end"

    with monkeypatch.context() as outage:
        outage.setattr(RunCheckpoints, "begin_attempt", away)
        with pytest.raises(CheckpointError, match="just now"):
            fit(train, tmp_path, num_workers=0)
    assert Result.from_path(tmp_path / "run").state == "failed"
    assert fit(train, tmp_path, num_workers=0).return_value == "the end"
