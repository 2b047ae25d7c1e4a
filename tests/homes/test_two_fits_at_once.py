"""Several ``fit()`` of one name in the same instant: one starts the ranks, the others follow it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.errors import ConfigError, WorkerError
from hpctrain.testing.slurm import VirtualCluster

SCRIPT = """
import os, pathlib, sys, time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

storage, factor, fail = sys.argv[1], float(sys.argv[2]), sys.argv[3]

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    for step in range(first, 4):
        if step == 2 and pathlib.Path(config["fail"]).exists():
            raise RuntimeError("as wanted")
        rank = hpctrain.get_context().get_world_rank()
        saved = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"step": step, "factor": config["factor"]}, saved)
        time.sleep(0.1)
    return "returned"

trainer = DataParallelTrainer(
    train,
    train_loop_config={"factor": factor, "fail": fail},
    scaling_config=ScalingConfig(num_workers=int(sys.argv[5])),
    run_config=RunConfig(storage_path=storage, name="run"),
)
barrier = pathlib.Path(sys.argv[4])
print("ready", flush=True)
deadline = time.monotonic() + 60
while not barrier.exists():
    assert time.monotonic() < deadline
print(trainer.fit().return_value)
"""


def fit_at_once(
    folder: Path, factors: list[float], *, environ: dict[str, str], num_workers: int = 1
) -> list[tuple[int, str]]:
    """Let processes call ``fit()`` in the same instant; return status and output of each."""
    script, barrier = folder / "train.py", folder / "barrier"
    script.write_text(SCRIPT)
    barrier.unlink(missing_ok=True)
    given = [str(folder / "fail"), str(barrier), str(num_workers)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(factor), *given],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for factor in factors
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    barrier.touch()
    ends = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, said) for process, said in zip(processes, ends, strict=True)]


def local() -> dict[str, str]:
    return {**os.environ, "HPCTRAIN_LAUNCHER": "local"}


def assert_one_run(run: Path, attempts: int) -> None:
    result = Result.from_path(run)
    assert [attempt.attempt for attempt in result.attempts] == list(range(1, attempts + 1))
    assert [r["step"] for r in result.metrics_history] == [0, 1, 2, 3]


@pytest.mark.mpi
@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_of_three_with_a_new_name_one_starts_and_two_follow_and_so_it_is_when_they_resume(
    tmp_path: Path, attempt: int
) -> None:
    (tmp_path / "fail").touch()
    ends = fit_at_once(tmp_path, [1.0] * 3, environ=local())
    for status, said in ends:
        assert status == WorkerError.exit_code, said
        assert "as wanted" in said
    (tmp_path / "fail").unlink()
    assert len(Result.from_path(tmp_path / "run").attempts) == 1

    ends = fit_at_once(tmp_path, [1.0] * 3, environ=local())
    for status, said in ends:
        assert status == 0, said
        assert said.endswith("returned\n")
    assert sum("resuming run run" in said for _, said in ends) == 1
    assert_one_run(tmp_path / "run", attempts=2)


@pytest.mark.mpi
def test_of_two_that_want_different_things_one_starts_and_the_other_is_refused(
    tmp_path: Path,
) -> None:
    ends = fit_at_once(tmp_path, [1.0, 2.0], environ=local())
    assert sorted(status for status, _ in ends) == [0, ConfigError.exit_code], ends
    refused = next(said for status, said in ends if status)
    assert "ConfigError: run 'run' in" in refused
    assert "and this fit() asks for something else" in refused
    assert_one_run(tmp_path / "run", attempts=1)


@pytest.mark.slurm
def test_of_two_on_a_login_node_one_submits_a_job_and_the_other_follows_it(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    environ = {**os.environ, **virtual_slurm.environ}
    ends = fit_at_once(tmp_path, [1.0, 1.0], environ=environ)
    for status, said in ends:
        assert status == 0, said
    assert sum("submitted run as job" in said for _, said in ends) == 1
    assert_one_run(tmp_path / "run", attempts=1)
    assert len(Result.from_path(tmp_path / "run").job_ids) == 1


@pytest.mark.mpi
def test_ranks_that_exist_wait_for_a_fit_that_has_just_begun_and_are_then_refused(
    tmp_path: Path,
) -> None:
    """Ranks cannot follow a run, so two starts of them are one run and one error."""
    script, barrier = tmp_path / "train.py", tmp_path / "barrier"
    script.write_text(SCRIPT)
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    command = [mpiexec, "-n", "2", sys.executable, str(script), str(tmp_path), "1.0"]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path / "fail"), str(barrier), "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        # mpiexec may put the words of two ranks into one line.
        said = "".join(process.stdout.readline() for _ in range(2))
        assert said.split() in (["ready", "ready"], ["readyready"])
    barrier.touch()
    ends = [process.communicate(timeout=120)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(code == 0 for code in codes) == [False, True], ends
    assert "ranks cannot follow it" in "".join(ends)
    assert_one_run(tmp_path / "run", attempts=1)
