"""A trial is taken for dead only if its job is, and its files have said nothing for long enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.slurm.output import Job
from hpctrain.tune import job_life
from hpctrain.tune.job_life import JobLife

PENDING, RUNNING, OVER = (Job(job_id="7", state=s) for s in ("PENDING", "RUNNING", "COMPLETED"))


class Slurm:
    """What the queue says of job 7, and what Slurm says when it is asked about it alone."""

    def __init__(self) -> None:
        self.in_queue: Job | LaunchError | None = RUNNING
        self.alone: Job | LaunchError | None = RUNNING
        self.questions: list[str] = []

    def register(self, job_id: str, uid: int) -> None:
        assert job_id == "7"

    def find(self, job_id: str, uid: int) -> Job | None:
        self.questions.append("queue")
        return self._answer(self.in_queue)

    def find_job(self, job_id: str) -> Job | None:
        self.questions.append("job")
        return self._answer(self.alone)

    @staticmethod
    def _answer(answer: Job | LaunchError | None) -> Job | None:
        if isinstance(answer, LaunchError):
            raise answer
        return answer


class Run:
    """A run directory whose executor may write its status, and a clock."""

    def __init__(self, root: Path, slurm: Slurm) -> None:
        self.paths, self.now = RunPaths(root), 0.0
        self.life = JobLife(self.paths, slurm, clock=lambda: self.now)  # type: ignore[arg-type]

    def write(self, state: RunState, *, at: float) -> None:
        status = RunStatus(
            name="r", state=state, launcher="slurm", job_id="7", attempt=1, updated_at=at
        )
        write_status(self.paths, status.placed_in(self.paths.root))

    def look(self, seconds: float) -> bool | None:
        """Look after some seconds."""
        self.now += seconds
        status = read_status(self.paths)
        assert status is not None
        return self.life.look(status)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(job_life, "find_job", slurm.find_job)
    return slurm


@pytest.fixture
def run(tmp_path: Path, slurm: Slurm) -> Run:
    run = Run(tmp_path, slurm)
    run.write(RunState.RUNNING, at=1.0)
    return run


def test_slurm_is_not_asked_as_long_as_an_executor_writes(run: Run, slurm: Slurm) -> None:
    for second in range(2, 60, 10):
        run.write(RunState.RUNNING, at=float(second))
        assert run.look(10) is True
    assert not slurm.questions
    assert run.look(16) is True
    assert slurm.questions == ["queue"]


def test_a_job_that_is_queued_again_is_alive(run: Run, slurm: Slurm) -> None:
    run.look(0)
    slurm.in_queue = PENDING
    assert run.look(3600) is True
    # It is over in an answer that is some seconds old, and was queued again since.
    slurm.in_queue, slurm.alone = OVER, PENDING
    assert run.look(3600) is True
    assert slurm.questions[-1] == "job"


@pytest.mark.parametrize("gone", [OVER, None])
def test_a_job_that_is_over_is_so_once_its_last_word_cannot_come(
    run: Run, slurm: Slurm, gone: Job | None
) -> None:
    run.look(0)
    slurm.in_queue = slurm.alone = gone
    assert run.look(20) is None
    assert run.look(29) is None
    assert run.look(1) is False
    assert run.life.last_job == gone
    assert slurm.questions.count("job") == 1


def test_a_last_word_that_comes_late_is_believed(run: Run, slurm: Slurm) -> None:
    run.look(0)
    slurm.in_queue = slurm.alone = OVER
    assert run.look(20) is None
    before = read_status(run.paths)
    assert before is not None
    run.write(RunState.FINISHED, at=3.0)
    run.now += 40
    # As one who has read it before sees it, and as it is then.
    assert run.life.look(before) is None
    after = read_status(run.paths)
    assert after is not None
    assert after.state is RunState.FINISHED


def test_without_an_answer_nothing_is_known(run: Run, slurm: Slurm) -> None:
    run.look(0)
    slurm.in_queue = LaunchError("away", transient=True)
    assert run.look(1e6) is None
    slurm.in_queue, slurm.alone = None, LaunchError("away", transient=True)
    assert run.look(1e6) is None
    slurm.alone = RUNNING
    assert run.look(1e6) is True
