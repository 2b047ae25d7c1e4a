from __future__ import annotations

import time
from pathlib import Path

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status, write_status


def test_a_status_comes_back_as_it_was_written_with_the_time(tmp_path: Path):
    status = RunStatus(
        name="run",
        state=RunState.RUNNING,
        launcher="slurm",
        attempt=2,
        world_size=4,
        nodes=("n1", "n2"),
        job_id="7",
        metrics={"loss": 0.5},
    )
    before = time.time()
    written = write_status(RunPaths(tmp_path), status)
    assert before <= written.updated_at <= time.time()
    assert read_status(RunPaths(tmp_path)) == written


def test_a_directory_without_a_status_is_not_an_error(tmp_path: Path):
    assert read_status(RunPaths(tmp_path)) is None
    assert read_status(RunPaths(tmp_path / "nowhere")) is None
    (tmp_path / "file").write_text("")
    assert read_status(RunPaths(tmp_path / "file")) is None


def test_only_ended_runs_are_final():
    assert {state for state in RunState if state.is_final} == {
        RunState.FINISHED,
        RunState.FAILED,
        RunState.STOPPED,
    }
