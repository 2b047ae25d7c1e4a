from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.fence import Fence
from hpctrain.execute.process import process_start_time
from hpctrain.launch.life import LifeTest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def never_asked(job_id: str) -> bool:
    raise AssertionError(f"asked for job {job_id}")


def write(paths: RunPaths, **changes: Any) -> RunStatus:
    """Write what an executor of another host would."""
    fields: dict[str, Any] = {"launcher": "allocation", "owner_host": "elsewhere", "owner_pid": 7}
    return write_status(
        paths, RunStatus(**{"name": "run", "state": RunState.RUNNING, **fields, **changes})
    )


@contextmanager
def writing(paths: RunPaths, **changes: Any) -> Iterator[None]:
    """Write it several times a second."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            write(paths, **changes)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("skew_s", [-90.0, 90.0])
def test_an_executor_elsewhere_lives_while_its_status_changes_whatever_its_clock_says(
    paths: RunPaths, skew_s: float, monkeypatch: pytest.MonkeyPatch
):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew_s)
    write(paths)
    with writing(paths):
        assert LifeTest(paths, never_asked, silence_s=60.0).watch() is True
    assert LifeTest(paths, never_asked, silence_s=0.3).watch() is False


def test_a_metric_that_is_not_a_number_is_no_sign_of_life(paths: RunPaths):
    write(paths, metrics={"loss": math.nan})
    assert LifeTest(paths, never_asked, silence_s=0.3).watch() is False


def test_who_was_seen_silent_is_not_waited_for_again(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    write(paths)
    life = LifeTest(paths, never_asked, silence_s=0.6)
    assert life.watch() is False
    with monkeypatch.context() as sleepless:
        sleepless.setattr("hpctrain.launch.life.time.sleep", lambda _: pytest.fail("it waits"))
        assert life.watch() is False
    # Until it shows life again.
    write(paths)
    assert life.watch() is True


@pytest.mark.parametrize("state", [state for state in RunState if state.is_final])
def test_a_run_that_is_over_is_not_waited_for(paths: RunPaths, state: RunState):
    write(paths, state=state)
    assert LifeTest(paths, never_asked).watch() is False


def test_a_process_of_this_host_is_not_waited_for(paths: RunPaths):
    pid = os.getpid()
    here = {"owner_host": socket.gethostname(), "owner_pid": pid}
    write(paths, **here, owner_start=process_start_time(pid))
    assert LifeTest(paths, never_asked).watch() is True
    write(paths, **here, owner_start=1)
    assert LifeTest(paths, never_asked).watch() is False


def test_where_slurm_says_that_the_job_is_over_nobody_is_waited_for(paths: RunPaths):
    write(paths, job_id="7")
    assert LifeTest(paths, lambda _: False).watch() is False


@pytest.mark.parametrize("alive", [True, None])
def test_a_job_that_lives_or_that_slurm_does_not_know_says_nothing_of_the_process_in_it(
    paths: RunPaths, alive: bool | None
):
    asked = []

    def job_is_alive(job_id: str) -> bool | None:
        asked.append(job_id)
        return alive

    write(paths, job_id="7")
    assert LifeTest(paths, job_is_alive, silence_s=1.2).watch() is False
    assert asked == ["7"]


def test_a_damaged_status_is_of_the_process_that_has_the_number(paths: RunPaths):
    write(paths)
    Fence(paths).take(paths)
    paths.status.write_text("")
    paths.ledger.write_text(
        "".join(
            json.dumps({"time": 1.0, **event}) + "\n"
            for event in (
                {"event": "fit", "launcher": "local"},
                {"event": "attempt-started", "attempt": 1, "resumed_from": None},
            )
        )
    )
    assert LifeTest(paths, never_asked).watch() is True


def test_who_waits_is_told_for_whom_and_how_long(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpctrain.launch.life.QUIET_S", 0.0)
    write(paths)
    LifeTest(paths, never_asked, silence_s=0.3).watch()
    said = capfd.readouterr().err
    assert "process 7 on elsewhere runs" in said
    assert "Waiting up to 0 s" in said


def test_how_long_is_twice_what_the_run_says_of_silent_nodes(paths: RunPaths):
    write(paths)
    for timeout_s, silence_s in ((30, 60), (1, 12), (1e9, 600), ("x", 60)):
        config = {"failure_config": {"node_timeout_s": timeout_s}}
        paths.plan.write_text(json.dumps({"run_config": config}))
        assert LifeTest(paths, never_asked)._find_silence_s() == silence_s
