"""`SubmittedValidation` step by step, with a Slurm that says what the test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute import slurm_calls, submitted_validation
from hpctrain.execute.slurm_calls import SlurmCalls
from hpctrain.execute.submitted_validation import SubmittedValidation, pause_s
from hpctrain.execute.validation_end import ValidationEnd
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.output import Job
from hpctrain.slurm.validation_submission import end_file, record_file

DIGEST = 64 * "a"


class Slurm:
    """Stands in for Slurm: real ends of jobs are in tests/execute/test_validation_jobs.py."""

    def __init__(self) -> None:
        self.jobs: list[Job | Exception | None] = []
        self.answers: list[str | LaunchError] = ["7"]
        self.cancelled: list[str] = []
        self.refusal: LaunchError | None = None
        self.num_asks = 0
        self.queue: list[Job] = []

    def submit(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, LaunchError):
            raise answer
        return answer

    def cancel_jobs(self, job_ids: list[str]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.cancelled.append(" ".join(job_ids))

    def find_job(self, job_id: str) -> Job | None:
        assert job_id == "7"
        self.num_asks += 1
        answer = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Validation:
    """A validation, its files, and how often it was submitted."""

    def __init__(self, paths: RunPaths, slurm: Slurm, manifest: Manifest) -> None:
        self.paths, self.slurm = paths, slurm
        self.script = paths.validation_job(2, 3)
        self.is_wanted = True
        self.submitted: list[str] = []
        self.calls = SlurmCalls()
        self.running = SubmittedValidation(
            paths,
            manifest=manifest,
            digest=DIGEST,
            calls=self.calls,
            submit=slurm.submit,
            is_wanted=lambda: self.is_wanted,
            on_submit=self.submitted.append,
        )

    def end_with(
        self, status: int, seconds: int = 1, metrics: Any = None, job_id: str = "7"
    ) -> None:
        if metrics is not None:
            self.paths.validation_result(2, 3).write_text(json.dumps(metrics))
        end_file(self.script).write_text(f"{status} {seconds} {job_id}\n")

    def look_until(self, condition: Callable[[], Any]) -> ValidationEnd | None:
        deadline = time.monotonic() + 30
        while True:
            if (ended := self.running.look()) is not None or condition():
                return ended
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def end(self) -> ValidationEnd:
        ended = self.look_until(lambda: False)
        assert ended is not None
        return ended


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(submitted_validation, "find_job", slurm.find_job)
    monkeypatch.setattr(submitted_validation, "find_jobs_of_script", lambda _: slurm.queue)
    monkeypatch.setattr(slurm_calls, "cancel_jobs", slurm.cancel_jobs)
    monkeypatch.setattr(timeouts, "VALIDATION_FILE_S", 0.01)
    for name in ("_LOOK_INTERVAL_S", "_FIRST_ASK_S"):
        monkeypatch.setattr(submitted_validation, name, 0.01)
    for name in ("_SUBMIT_PAUSES_S", "_REASON_PAUSES_S"):
        monkeypatch.setattr(
            submitted_validation, name, (0.01,) * len(getattr(submitted_validation, name))
        )
    return slurm


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    for folder in (paths.submission, paths.logs(2), paths.checkpoints / "000003"):
        folder.mkdir(parents=True)
    return paths


@pytest.fixture
def limited(manifest: Manifest) -> Manifest:
    """Return that of a checkpoint whose validation may take two seconds."""
    return replace(manifest, validation={"fn_kwargs": {}, "timeout_s": 2.0})


@pytest.fixture
def validation(paths: RunPaths, slurm: Slurm, limited: Manifest) -> Validation:
    return Validation(paths, slurm, limited)


def job(state: str, **fields: Any) -> Job:
    return Job(job_id="7", state=state, **fields)


def test_slurm_is_asked_ever_more_seldom() -> None:
    asks, now = [], 0.0
    while now < 3600:
        now += pause_s(len(asks))
        asks.append(now)
    assert sum(at <= 600 for at in asks) == 5
    assert sum(at <= 3600 for at in asks) == 15
    assert pause_s(10_000) == 300.0


def test_an_end_that_is_written_down_is_not_asked_for(validation: Validation, slurm: Slurm) -> None:
    validation.look_until(lambda: validation.submitted)
    validation.end_with(0, seconds=4, metrics={"score": 1.0})
    ended = validation.end()
    assert (ended.metrics, ended.error, ended.seconds) == ({"score": 1.0}, None, 4.0)
    assert (validation.submitted, slurm.num_asks, slurm.cancelled) == (["7"], 0, [])
    assert {path.suffix for path in ended.leftovers} == {".json", ".end", ".sh"}


def submitted_before(paths: RunPaths, job_id: str, digest: str) -> None:
    script = paths.validation_job(2, 3)
    script.write_text(f"#!/bin/bash\npython -m hpctrain.worker.validate {digest} 0\n")
    record = {"job_id": job_id, "script": str(script), "created_at": 5.0}
    record_file(script).write_text(json.dumps(record))


def test_a_job_that_is_known_is_not_submitted_again(
    paths: RunPaths, slurm: Slurm, limited: Manifest
) -> None:
    submitted_before(paths, "7", DIGEST)
    slurm.answers.clear()
    validation = Validation(paths, slurm, limited)
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}
    assert validation.submitted == []


def test_a_job_of_an_earlier_spec_is_submitted_again(
    paths: RunPaths, slurm: Slurm, limited: Manifest
) -> None:
    submitted_before(paths, "6", 64 * "b")
    validation = Validation(paths, slurm, limited)
    # It has refused the new spec.
    validation.end_with(1, job_id="6")
    validation.look_until(lambda: validation.submitted)
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}
    assert validation.submitted == ["7"]


def test_what_a_job_of_an_earlier_spec_has_found_counts(
    paths: RunPaths, slurm: Slurm, limited: Manifest
) -> None:
    submitted_before(paths, "6", 64 * "b")
    paths.validation_result(2, 3).write_text('{"score": 1.0}')
    end_file(paths.validation_job(2, 3)).write_text("0 1 6\n")
    validation = Validation(paths, slurm, limited)
    assert validation.end().metrics == {"score": 1.0}
    assert validation.submitted == []


@pytest.mark.parametrize(
    ("refusals", "complaint"),
    [
        ([LaunchError("Socket timed out", transient=True)], None),
        ([LaunchError("Invalid qos")], "Invalid qos"),
        ([LaunchError("Socket timed out", transient=True)] * 4, "Socket timed out"),
    ],
    ids=["passing", "for good", "without end"],
)
def test_a_refusal_that_may_pass_is_tried_again(
    validation: Validation, slurm: Slurm, refusals: list[LaunchError], complaint: str | None
) -> None:
    slurm.answers[:0] = refusals
    if complaint is not None:
        assert validation.end().error == complaint
        return
    validation.look_until(lambda: validation.submitted)
    assert validation.submitted == ["7"]


def test_a_job_that_slurm_has_taken_without_an_answer_is_found(
    validation: Validation, slurm: Slurm
) -> None:
    slurm.answers = [LaunchError("sbatch did not answer", transient=True)] * 4
    slurm.queue = [job("PENDING")]
    validation.look_until(lambda: validation.submitted)
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}


@pytest.mark.parametrize(
    ("status", "jobs", "error"),
    [
        (1, [], "it ended with status 1"),
        (124, [], "it took longer than timeout_s=2"),
        # Slurm knows the reason only some seconds later.
        (137, [job("RUNNING"), job("OUT_OF_MEMORY")], "its job 7 used more memory than it had"),
        (143, [job("TIMEOUT")], "its job 7 reached its time limit"),
        # An epilog takes its time, or the node does not answer.
        (143, [*(8 * [job("COMPLETING")]), job("CANCELLED")], "its job 7 was cancelled"),
        (139, [job("FAILED")], "it was killed by SIGSEGV"),
        (143, [None], "it was killed by SIGTERM"),
        (None, [job("RUNNING"), job("NODE_FAIL", nodes="n1")], "its job 7 lost its node (n1)"),
        # No process can be started.
        (None, [BlockingIOError(11, "fork"), job("CANCELLED")], "its job 7 was cancelled"),
        (None, [LaunchError("away"), job("CANCELLED")], "its job 7 was cancelled"),
        (None, [None], "its job 7 is gone, and Slurm has forgotten why"),
    ],
)
def test_why_a_job_has_ended_is_said(
    validation: Validation, slurm: Slurm, status: int | None, jobs: list[Any], error: str
) -> None:
    slurm.jobs = jobs
    validation.look_until(lambda: validation.submitted)
    if status is not None:
        validation.end_with(status)
    ended = validation.end()
    assert ended.error is not None
    assert ended.error.startswith(error)
    assert ended.metrics == {}


def test_what_does_not_heed_the_end_of_its_time_took_too_long(validation: Validation) -> None:
    validation.slurm.jobs = [job("FAILED")]
    validation.look_until(lambda: validation.submitted)
    validation.end_with(137, seconds=7)
    assert validation.end().error == "it took longer than timeout_s=2"


def test_metrics_that_are_there_count_whatever_became_of_the_job(validation: Validation) -> None:
    validation.slurm.jobs = [job("NODE_FAIL")]
    validation.look_until(lambda: validation.submitted)
    validation.paths.validation_result(2, 3).write_text('{"score": 1.0}')
    ended = validation.end()
    assert (ended.metrics, ended.error) == ({"score": 1.0}, None)


def test_metrics_that_another_node_shows_late_are_waited_for(
    validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "VALIDATION_FILE_S", 20.0)
    validation.look_until(lambda: validation.submitted)
    validation.end_with(0)
    looks = iter(range(20))
    assert validation.look_until(lambda: next(looks, None) is None) is None
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}


def test_metrics_that_never_come_are_said_to_be_missing(validation: Validation) -> None:
    validation.look_until(lambda: validation.submitted)
    validation.end_with(0)
    error = validation.end().error
    assert error is not None
    assert error.startswith("its metrics cannot be read")


def test_the_late_end_of_a_job_that_was_there_before_is_none(
    validation: Validation, slurm: Slurm
) -> None:
    slurm.jobs = [job("RUNNING")]
    validation.look_until(lambda: validation.submitted)
    validation.end_with(143, job_id="6")
    assert validation.look_until(lambda: slurm.num_asks > 1) is None
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}


def test_a_job_that_slurm_queues_again_is_waited_for(validation: Validation, slurm: Slurm) -> None:
    slurm.jobs = [job("PENDING", restarts=1)]
    validation.look_until(lambda: validation.submitted)
    validation.end_with(143)
    assert validation.look_until(lambda: not end_file(validation.script).exists()) is None
    validation.end_with(0, metrics={"score": 1.0})
    assert validation.end().metrics == {"score": 1.0}


def test_a_job_that_ran_again_while_it_was_asked_for_seldom_ended_as_it_did_then(
    validation: Validation, slurm: Slurm
) -> None:
    slurm.jobs = [job("COMPLETING")]
    validation.look_until(lambda: validation.submitted)
    validation.end_with(143)
    assert validation.look_until(lambda: slurm.num_asks > 5) is None
    validation.end_with(3)
    assert validation.end().error == "it ended with status 3"


def test_a_checkpoint_that_was_made_anew_takes_its_job_along(
    validation: Validation, slurm: Slurm
) -> None:
    slurm.jobs = [job("RUNNING")]
    validation.look_until(lambda: slurm.num_asks > 0)
    validation.is_wanted = False
    assert validation.end().error == "the checkpoint is gone"
    validation.calls.close(10)
    assert slurm.cancelled == ["7"]


def test_a_submission_that_is_under_way_is_cancelled_too(
    validation: Validation, slurm: Slurm
) -> None:
    assert validation.running.look() is None
    validation.running.end()
    validation.calls.close(10)
    assert slurm.cancelled == ["7"]


def test_a_job_that_cannot_be_cancelled_keeps_its_files(
    validation: Validation, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    validation.look_until(lambda: validation.submitted)
    assert validation.script in validation.running.leftovers
    slurm.refusal = LaunchError("Unable to contact", transient=True)
    validation.running.end()
    validation.calls.close(10)
    assert validation.running.leftovers == ()
    told = capsys.readouterr().err
    assert "(000003) may go on: Unable to contact. End them with: scancel 7" in told


def test_a_submission_that_has_not_begun_is_left_out(validation: Validation, slurm: Slurm) -> None:
    gate = threading.Event()
    validation.calls.begin(gate.wait, changes=True)
    assert validation.running.look() is None
    validation.running.leave()
    gate.set()
    validation.calls.close(10)
    assert slurm.answers == ["7"]
