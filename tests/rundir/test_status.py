from __future__ import annotations

import json
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, explain_gap, read_status, write_status


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


def test_a_changed_status_is_another_one_and_has_no_fields_of_its_own():
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", reports=2)
    changed = status.with_changes(reports=3, nodes=("node1",))
    assert changed == replace(status, reports=3, nodes=("node1",))
    assert status.reports == 2
    with pytest.raises(TypeError, match="report_number"):
        status.with_changes(report_number=3)


def test_a_directory_without_a_status_is_not_an_error(tmp_path: Path):
    assert read_status(RunPaths(tmp_path)) is None
    assert read_status(RunPaths(tmp_path / "nowhere")) is None
    (tmp_path / "file").write_text("")
    assert read_status(RunPaths(tmp_path / "file")) is None


def test_a_ledger_without_an_end_is_damaged_once_its_executor_has_had_time_to_write_it():
    """It writes its status first."""

    def explain(*, ended_s_ago: float) -> str | None:
        ended_at = time.time() - ended_s_ago
        status = RunStatus(
            name="run", state=RunState.FINISHED, launcher="local", ended_at=ended_at, attempt=1
        )
        return explain_gap([{"event": "attempt-started"}], status)

    assert explain(ended_s_ago=0) is None
    assert explain(ended_s_ago=3600) == "it does not say how the run ended"


def test_only_ended_runs_are_final():
    assert {state for state in RunState if state.is_final} == {
        RunState.FINISHED,
        RunState.FAILED,
        RunState.STOPPED,
        RunState.REFUSED,
    }


@pytest.fixture
def original(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    root.mkdir()
    return root


def begin(root: Path, **changes: object) -> RunStatus:
    """Write the status of a run that goes on, as another host's executor would."""
    status = RunStatus(
        name=root.name, state=RunState.RUNNING, launcher="slurm", job_id="7", owner_host="n1"
    )
    return write_status(RunPaths(root), status.placed_in(root).with_changes(**changes))


def test_a_copy_is_run_by_nobody(original: Path, tmp_path: Path):
    status = begin(original)
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    of_copy = read_status(RunPaths(copy))
    assert of_copy is not None
    assert (of_copy.state, of_copy.job_id, of_copy.owner_pid) == (RunState.STOPPED, None, 0)
    assert of_copy.name == "copy"
    assert str(of_copy.error).startswith(f"{copy} is a copy of {original}")
    assert not of_copy.is_of(copy)
    assert read_status(RunPaths(original)) == status


def test_a_copy_of_a_run_that_has_ended_has_ended_as_well(original: Path, tmp_path: Path):
    status = begin(original, state=RunState.FAILED)
    shutil.copytree(original, tmp_path / "copy")
    assert read_status(RunPaths(tmp_path / "copy")) == status


def test_another_path_to_the_same_directory_leads_to_the_same_run(original: Path, tmp_path: Path):
    status = begin(original)
    (tmp_path / "link").symlink_to(original)
    assert read_status(RunPaths(tmp_path / "link")) == status
    original.rename(tmp_path / "moved")
    assert read_status(RunPaths(tmp_path / "moved")) == status


def test_a_copy_in_the_place_of_the_original_is_known_on_the_host_of_its_owner(
    original: Path, tmp_path: Path
):
    begin(original, owner_host=socket.gethostname())
    original.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", original)
    status = read_status(RunPaths(original))
    assert status is not None
    assert status.state is RunState.STOPPED


def test_a_status_of_an_older_or_a_newer_version_can_be_read(original: Path, tmp_path: Path):
    begin(original)
    copy = RunPaths(tmp_path / "copy")
    shutil.copytree(original, copy.root)
    content = json.loads(copy.status.read_bytes())
    for name in ("path", "device", "inode"):
        del content[name]
    copy.status.write_text(json.dumps({**content, "added_later": 1}))
    status = read_status(copy)
    assert status is not None
    assert (status.state, status.job_id) == (RunState.RUNNING, "7")
