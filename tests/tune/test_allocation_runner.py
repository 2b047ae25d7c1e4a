"""What the files of a trial's run say of lost nodes, and of the end of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune import allocation_runner
from hpctrain.tune.allocation_runner import AllocationRunner, find_losses
from hpctrain.tune.trial import Trial

BEGUN = {"event": "executor-started"}
LOST = {"event": "node-lost", "node": "b", "reason": "silent"}
ENDED = {"event": "attempt-ended", "kind": "preemption"}


def test_only_what_happened_since_the_run_was_last_begun_counts() -> None:
    over = [BEGUN, LOST, ENDED, {"event": "run-ended"}]
    assert find_losses(over) == ({"b": "silent"}, "preemption")
    assert find_losses([*over, BEGUN]) == ({}, None)
    assert find_losses([*over, BEGUN, {"event": "attempt-ended", "kind": None}]) == ({}, None)
    assert find_losses([]) == ({}, None)


@pytest.mark.parametrize(("job_id", "is_alive", "is_over"), [("7", None, True), ("7", True, False)])
def test_an_executor_that_could_start_nothing_in_a_job_that_is_over_has_not_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_id: str,
    is_alive: bool | None,
    is_over: bool,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setattr(allocation_runner, "job_is_alive", lambda job_id: is_alive)
    paths = RunPaths(tmp_path / "trial_00000")
    paths.root.mkdir()
    write_status(
        paths,
        RunStatus(
            name="trial_00000",
            state=RunState.FAILED,
            launcher="allocation",
            job_id=job_id,
            error="srun: error: Slurm job 7 has expired",
            error_type="LaunchError",
        ),
    )
    runner = AllocationRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    assert runner.attach(Trial(trial_id="trial_00000", config={})) != is_over
