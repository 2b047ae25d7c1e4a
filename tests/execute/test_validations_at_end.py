"""`Validations` once the training has ended, with a validation that does not end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute import slurm_calls
from hpctrain.execute import validations as validations_module
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.submitted_validation import SubmittedValidation
from hpctrain.execute.validation_end import RunningValidation
from hpctrain.execute.validations import Validations
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

TIMEOUT_S = 60.0
WAIT_S = 3600.0
Wait = Callable[..., float]


class Endless(RunningValidation):
    """Stands in for a job that Slurm does not start."""

    leftovers = ()

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, log=Path("validation.out"))

    def look(self) -> None:
        return None

    def wait(self, timeout_s: float) -> None:
        time.sleep(0.01)

    def end(self) -> None:
        pass

    def leave(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(wait_timeout_s=WAIT_S, job=None, max_jobs=1)
    monkeypatch.setattr(Validations, "_read_spec", lambda _: (spec, "", ""))
    monkeypatch.setattr(Validations, "_launch", lambda _, manifest: Endless(manifest))
    monkeypatch.setattr(timeouts, "VALIDATION_FILE_S", 0.05)
    monkeypatch.setattr(validations_module, "_SAY_AFTER_S", 0.1)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


@pytest.fixture
def wait(paths: RunPaths, manifest: Manifest) -> Wait:
    """Return what waits as the executor of one job of the run, and returns for how many seconds."""

    def wait(*, job_ends_after_s: float, is_there: bool = True) -> float:
        status = RunStatus(name="run", state=RunState.RUNNING, launcher="slurm", job_id="7")
        checkpoints: Any = SimpleNamespace(end_validation=lambda *_: is_there)
        validations = Validations(ExecutorRecord(paths, status), checkpoints)
        validations.add([manifest])
        began = time.monotonic()
        validations.wait(lambda: time.monotonic() < began + job_ends_after_s)
        validations.close()
        return time.monotonic() - began

    return wait


def ends(paths: RunPaths) -> list[str | None]:
    return [e["error"] for e in read_events(paths) if e["event"] == "validation-ended"]


def have_waited(paths: RunPaths, seconds: float) -> None:
    """Write down what earlier jobs of the run waited."""
    append_event(paths, "validations-left", checkpoints=["000003"], seconds=seconds)


def test_a_job_that_ends_meanwhile_writes_down_how_long_it_waited(
    paths: RunPaths, wait: Wait
) -> None:
    wait(job_ends_after_s=0.3)
    assert ends(paths) == []
    (left,) = (e for e in read_events(paths) if e["event"] == "validations-left")
    assert left["checkpoints"] == ["000003"]
    assert 0.2 < left["seconds"] < TIMEOUT_S


def test_all_jobs_of_a_run_wait_no_longer_than_one(paths: RunPaths, wait: Wait) -> None:
    have_waited(paths, WAIT_S / 2)
    have_waited(paths, WAIT_S / 2 - 0.5)
    assert 0.4 < wait(job_ends_after_s=TIMEOUT_S) < TIMEOUT_S
    (error,) = ends(paths)
    assert error is not None
    assert "ValidationConfig(wait_timeout_s=...)" in error


def test_a_person_who_calls_fit_again_waits_anew(paths: RunPaths, wait: Wait) -> None:
    have_waited(paths, WAIT_S)
    append_event(paths, "fit", launcher="slurm", job_id=None, continues=False)
    wait(job_ends_after_s=0.3)
    assert ends(paths) == []


def test_what_ended_between_two_jobs_is_looked_at_when_no_time_is_left(
    paths: RunPaths, wait: Wait
) -> None:
    have_waited(paths, 2 * WAIT_S)
    assert wait(job_ends_after_s=TIMEOUT_S) >= 0.05


def test_it_is_said_once_what_the_run_waits_for(
    paths: RunPaths, wait: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    wait(job_ends_after_s=0.5)
    told = capsys.readouterr().err
    assert told.count("waits for the validation of checkpoints") == 1
    assert "000003" in told


@pytest.mark.parametrize("is_there", [True, False])
def test_only_a_checkpoint_that_is_there_keeps_its_metrics(
    paths: RunPaths, wait: Wait, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    have_waited(paths, WAIT_S)
    wait(job_ends_after_s=TIMEOUT_S, is_there=is_there)
    told = capsys.readouterr().err
    assert "the validation of checkpoint 000003 failed: it had not ended" in told
    assert ("keeps the metrics" in told) == is_there


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_that_is_given_up_keeps_its_files_where_it_is_not_cancelled(
    paths: RunPaths,
    wait: Wait,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    is_refused: bool,
) -> None:
    cancelled: list[list[str]] = []

    def cancel_jobs(job_ids: list[str]) -> None:
        cancelled.append(job_ids)
        if is_refused:
            raise LaunchError("Unable to contact", transient=True)

    def launch(self: Validations, manifest: Manifest) -> SubmittedValidation:
        def submit() -> str:
            script.write_text("#!/bin/bash\n")
            return "7"

        return SubmittedValidation(
            paths,
            manifest=manifest,
            digest="",
            calls=self._calls,
            submit=submit,
            is_wanted=lambda: True,
            on_submit=lambda _: None,
        )

    script = paths.validation_job(2, 3)
    for folder in (script.parent, paths.checkpoints / manifest.name):
        folder.mkdir(parents=True)
    monkeypatch.setattr(slurm_calls, "cancel_jobs", cancel_jobs)
    monkeypatch.setattr(Validations, "_launch", launch)
    # The submission has its thread to start meanwhile.
    have_waited(paths, WAIT_S - 2)
    wait(job_ends_after_s=TIMEOUT_S)
    assert len(ends(paths)) == 1
    assert cancelled == [["7"]]
    assert script.exists() == is_refused
