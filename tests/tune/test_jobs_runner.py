"""What the end of a trial's job means, by what Slurm says of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hpctrain import LaunchError
from hpctrain.own_time import Deadline
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.slurm.output import Job
from hpctrain.tune import jobs_runner
from hpctrain.tune.job_life import JobLife
from hpctrain.tune.jobs_runner import JobsRunner
from hpctrain.tune.runner import End
from hpctrain.tune.trial import Trial


def end_of(folder: Path, exit_code: str, *, log: str = "", attempt: int = 0) -> End:
    """Return how a trial has ended whose job is over."""
    runner = JobsRunner(lambda trial_id, config: None, lambda name: folder / name)  # type: ignore[arg-type,return-value]
    paths = RunPaths(folder / "trial_00000")
    paths.root.mkdir()
    paths.job_log("7").parent.mkdir(exist_ok=True)
    paths.job_log("7").write_text(log)
    status = RunStatus(
        name="trial_00000",
        state=RunState.SUBMITTED,
        launcher="slurm",
        job_id="7",
        attempt=attempt,
    )
    write_status(paths, status)
    watch = runner._watch(Trial(trial_id="trial_00000", config={}))
    assert isinstance(watch.life, JobLife)
    watch.life.last_job = Job(job_id="7", state="FAILED", exit_code=exit_code, nodes="node1")
    end = runner._explain_death(watch, status)
    after = read_status(paths)
    assert after is not None
    assert after.state is RunState.STOPPED
    return end


@pytest.mark.parametrize(
    ("exit_code", "log", "is_for_all"),
    [
        ("0:53", "", True),
        ("66:0", "", True),
        ("66:0", "hpctrain: node1 does not see the run directory /tmp/x. Choose another.\n", True),
        ("66:0", "no input\n", False),
        ("1:0", "module: not found\n", False),
    ],
)
def test_a_job_whose_node_lacks_a_path_has_failed_as_all_others_would(
    tmp_path: Path, exit_code: str, log: str, is_for_all: bool
) -> None:
    end = end_of(tmp_path, exit_code, log=log)
    assert (end.failed, end.is_for_all) == (True, is_for_all)
    if is_for_all:
        assert "not see the run directory" in end.reason


def test_a_job_that_had_begun_has_seen_its_files(tmp_path: Path) -> None:
    assert not end_of(tmp_path, "66:0", attempt=1).is_for_all


def test_no_job_is_waited_for_before_slurm_was_asked_to_end_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = [0.0], []

    def cancel(paths: RunPaths, *, now: bool, patience_s: float) -> str:
        asked.append((paths.root.name, patience_s))
        clock[0] += patience_s
        if paths.root.name == "b":
            raise LaunchError("Slurm does not answer")
        return ""

    monkeypatch.setattr(jobs_runner, "cancel_run", cancel)
    monkeypatch.setattr(jobs_runner, "Deadline", partial(Deadline, clock=lambda: clock[0]))
    runner = JobsRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    runner.end([Trial(trial_id=name, config={}) for name in "abc"], patience_s=30.0)
    assert asked == [("a", 0.0), ("b", 0.0), ("c", 0.0), ("a", 30.0), ("c", 0.0)]
