from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.callback import RunContext, UserCallback
from hpctrain.execute.callback_calls import CallbackCalls
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus


class Seen(UserCallback):
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunContext, Any]] = []

    def on_finish(self, run_context: RunContext, result: Any) -> None:
        self.calls.append((run_context, result))


class Broken(UserCallback):
    """A callback that raises."""

    def on_finish(self, run_context: RunContext, result: Any) -> None:
        raise ValueError("no such server")


@pytest.fixture
def run_record(tmp_path: Path) -> ExecutorRecord:
    status = RunStatus(
        name="run", state=RunState.RUNNING, launcher="local", attempt=2, world_size=4
    )
    return ExecutorRecord(RunPaths(tmp_path), status)


def test_a_hook_gets_the_context_of_the_run(run_record: ExecutorRecord):
    seen = Seen()
    calls = CallbackCalls([seen], run_record)
    assert calls
    calls.call("on_finish", "result", report=7)
    ((context, result),) = seen.calls
    assert result == "result"
    assert context == RunContext(
        name="run", path=run_record.paths.root, attempt=2, world_size=4, report=7
    )


def test_the_sweep_of_a_trial_is_looked_for_once(tmp_path: Path):
    (tmp_path / "trial").mkdir()
    ledger = tmp_path / "tune.jsonl"
    ledger.touch()
    status = RunStatus(name="trial", state=RunState.RUNNING, launcher="local")
    seen = Seen()
    calls = CallbackCalls([seen], ExecutorRecord(RunPaths(tmp_path / "trial"), status))
    calls.call("on_finish", None, report=1)
    # As where a filesystem does not answer for a moment.
    ledger.unlink()
    calls.call("on_finish", None, report=2)
    assert [context.sweep for context, _ in seen.calls] == [tmp_path.name] * 2


def test_no_callbacks_are_false(run_record: ExecutorRecord):
    assert not CallbackCalls([], run_record)


def test_a_callback_that_raises_is_written_down_and_the_next_is_called(
    run_record: ExecutorRecord, capsys: pytest.CaptureFixture[str]
):
    seen = Seen()
    CallbackCalls([Broken(), seen], run_record).call("on_finish", None, report=1)
    assert len(seen.calls) == 1
    described = "Broken.on_finish: ValueError: no such server"
    assert [e["error"] for e in read_events(run_record.paths)] == [described]
    assert f"callback failed: {described}" in capsys.readouterr().err


def test_an_error_of_a_fatal_callback_is_raised(run_record: ExecutorRecord):
    fatal, seen = Broken(), Seen()
    fatal.fatal = True  # type: ignore[misc]
    with pytest.raises(ValueError, match="no such server"):
        CallbackCalls([fatal, seen], run_record).call("on_finish", None, report=1)
    assert seen.calls == []
