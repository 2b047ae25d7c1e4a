"""Failures inside a Slurm job: the login node hears of them, and the allocation is used again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

SCRIPT = """
import os, signal, sys
import hpctrain
import hpctrain.collective
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, HpctrainError, RunConfig, ScalingConfig,
    SlurmConfig,
)

def train(config):
    context = hpctrain.get_context()
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    for step in range(first, 3):
        if step == 1 and context.get_world_rank() == 3 and context.world.attempt == 1:
            if config["end"] == "raise":
                raise ValueError("the loss is NaN")
            os.kill(os.getpid(), signal.SIGKILL)
        saved = Checkpoint.from_dict({"step": step}) if context.get_world_rank() == 0 else None
        hpctrain.report({"step": step}, saved)
        hpctrain.collective.barrier(timeout_s=600)

if __name__ == "__main__":
    storage, end, failures = sys.argv[1:]
    try:
        DataParallelTrainer(
            train,
            train_loop_config={"end": end},
            scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)),
            run_config=RunConfig(
                storage_path=storage, name="run",
                failure_config=FailureConfig(max_failures=int(failures)),
            ),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""


def start(
    cluster: VirtualCluster, tmp_path: Path, end: str, failures: int, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [*prefix, sys.executable, str(script), str(tmp_path), end, str(failures)],
        env={**os.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_login_process_raises_what_a_rank_of_the_job_raised(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    done = start(virtual_slurm, tmp_path, "raise", 0)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "WorkerError: rank 3 of 4 on node" in done.stdout
    assert 'raise ValueError("the loss is NaN")' in done.stdout
    assert "checkpoints/000001" in done.stdout
    assert "logs/1/rank-00003.out" in done.stdout


@pytest.mark.parametrize("prefix", [(), ("salloc", "--quiet", "-N2", "--ntasks-per-node=2")])
def test_a_killed_rank_is_restarted_inside_the_same_allocation(
    virtual_slurm: VirtualCluster, tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    done = start(virtual_slurm, tmp_path, "kill", 1, prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    result = Result.from_path(tmp_path / "run")
    assert [m["step"] for m in result.metrics_history] == [0, 1, 2]
    assert len(result.attempts) == 2
    assert len(result.job_ids) == 1
    assert "rank 3 of 4" in str(result.attempts[0].cause)
    assert "SIGKILL" in str(result.attempts[0].cause)
