"""``submit()`` inside an allocation: runs in the background, and handles to wait for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until_final

pytestmark = pytest.mark.slurm

SCRIPT = """
import sys, time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    for step in range(config["steps"]):
        hpctrain.report({"step": step, "factor": config["factor"]})
        time.sleep(0.1)

def submit(factor, steps=3, name=None):
    return DataParallelTrainer(
        train,
        train_loop_config={"factor": factor, "steps": steps},
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)),
        run_config=RunConfig(name=name or f"factor-{factor}", storage_path="a %place", verbose=0),
    ).submit()

"""
WAITS = """
first, second, endless = submit(1), submit(2), submit(3, steps=10**6)
print(first)
done, running = hpctrain.wait([endless, second, first], num_returns=2)
print([handle.name for handle in done], [handle.name for handle in running])
print([handle.result().metrics["factor"] for handle in done])
endless.cancel()
print(endless.wait(timeout_s=60), endless.state)
try:
    endless.result()
except hpctrain.RunStoppedError as error:
    print(str(error).partition(",")[0])
"""
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
LEAVES = """
handle = submit(1, steps=10**6, name="left")
while handle.state != "running":
    time.sleep(0.1)
"""


def in_job(
    cluster: VirtualCluster, folder: Path, script: str, *, sbatch: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a script in an allocation of two nodes, or in a batch job, to the end of that."""
    (folder / "train.py").write_text(SCRIPT + script)
    command = [sys.executable, "train.py"]
    argv = ["salloc", "--quiet", *TWO_NODES, *command]
    if sbatch:
        argv = ["sbatch", "--wait", "--output=job.out", *TWO_NODES, f"--wrap={' '.join(command)}"]
    return subprocess.run(
        argv,
        cwd=folder,
        # The turns in the background are nobody else's.
        env={**os.environ, **cluster.environ, "HPCTRAIN_LAUNCHER": "", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_script_in_an_allocation_waits_for_its_runs(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    done = in_job(virtual_slurm, tmp_path, WAITS)
    assert done.returncode == 0, done.stdout + done.stderr
    shown, *rest = done.stdout.splitlines()
    match = re.fullmatch(r"RunHandle\(name='factor-1', state='\w+', job_id='(\d+)'\)", shown)
    assert match is not None, shown
    assert rest == [
        "['factor-2', 'factor-1'] ['factor-3']",
        "[2, 1]",
        "True stopped",
        "the run stopped because it was asked to (hpctrain cancel)",
    ]
    for factor in (1, 2):
        result = Result.from_path(tmp_path / "a %place" / f"factor-{factor}")
        assert (result.state, result.nodes) == ("finished", ("node1", "node2"))
        assert (result.status.launcher, result.job_ids) == ("allocation", [match[1]])


def test_a_run_that_its_script_leaves_behind_ends_with_the_job_and_is_resumed(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    done = in_job(virtual_slurm, tmp_path, LEAVES, sbatch=True)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "job.out").read_text()
    # The executor stops the ranks in the grace time of Slurm.
    left = wait_until_final(tmp_path / "a %place" / "left")
    assert left.state == "stopped"
    (job_id,) = left.job_ids
    assert f"job {job_id} got SIGTERM" in str(left.error)
    assert "fit() with the same name resumes it" in str(left.error)
    done = in_job(virtual_slurm, tmp_path, "print(submit(1, name='left').result().metrics)")
    assert done.stdout == "{'step': 2, 'factor': 1}\n", done.stdout + done.stderr
