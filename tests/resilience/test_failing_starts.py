"""A start that fails is followed by one by other means; a refused step is asked for again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

# In the first attempts of a run a rank exits in place of joining the MPI world.
SITECUSTOMIZE = """
import os, sys

class ExitsInsteadOfMpi:
    def find_spec(self, name, path, target=None):
        if name == "mpi4py":
            os._exit(7)

if "hpctrain.worker.main" in sys.orig_argv:
    attempt = int(sys.orig_argv[sys.orig_argv.index("hpctrain.worker.main") + 2])
    rank = os.environ.get("PMI_RANK", os.environ.get("SLURM_PROCID"))
    if attempt <= int(os.environ["BAD_STARTS"]) and rank == "1":
        sys.meta_path.insert(0, ExitsInsteadOfMpi())
"""
SCRIPT = """
import os, subprocess, sys
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    asked = ["squeue", "--steps", "--noheader", "--format=%j", "--jobs", os.environ["SLURM_JOB_ID"]]
    steps = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.split()
    hpctrain.report({"steps": sorted(set(steps) - {"batch", "extern"})})

if __name__ == "__main__":
    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=4)),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
"""
# A step of the user's own without --overlap, which has all of the job's memory until Slurm has
# refused another one, as the file $0 says.
BESIDE = """
REFUSED='for _ in $(seq 600); do grep -qs "Memory required" "$0" && exit; sleep 0.1; done'
srun --mpi=none --job-name=beside sh -c "$REFUSED" "$0" &
while ! squeue --steps --noheader --format=%j --jobs $SLURM_JOB_ID | grep -q beside; do sleep 0.1
done
"$@"
"""


def fit(
    cluster: VirtualCluster, folder: Path, *, bad_starts: int = 0, before: tuple[str, ...] = ()
) -> list[str]:
    """Run the script; return the steps that the last attempt saw beside it, by their names."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [*before, sys.executable, str(folder / "train.py"), str(folder)],
        env={
            **os.environ,
            **cluster.environ,
            "PYTHONPATH": str(folder),
            "BAD_STARTS": str(bad_starts),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps: list[str] = Result.from_path(folder / "run").metrics["steps"]
    return steps


@pytest.mark.parametrize(("bad_starts", "seen"), [(1, "hydra_pmi_proxy"), (2, "python")])
def test_starts_that_fail_are_tried_by_turns_with_mpiexec_and_srun(
    virtual_slurm: VirtualCluster, tmp_path: Path, bad_starts: int, seen: str
) -> None:
    steps = fit(virtual_slurm, tmp_path, bad_starts=bad_starts)
    # That of the agents, and that of the ranks or their proxies: no other is left.
    assert steps == sorted({"python", "sh", seen} & set(steps))
    assert seen in steps
    assert len(Result.from_path(tmp_path / "run").attempts) == bad_starts + 1
    events = read_events(RunPaths(tmp_path / "run"))
    chosen = [event["mpi"] for event in events if event["event"] == "restart"]
    assert chosen == ["wheel", "auto"][:bad_starts]


def test_a_step_that_slurm_refuses_for_the_memory_of_another_one_is_asked_for_again(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    salloc = ("salloc", "--quiet", "--nodes=4", "--ntasks-per-node=1", "--mem-per-cpu=64")
    agents_out = tmp_path / "run/logs/1/agents.out"
    fit(virtual_slurm, tmp_path, before=(*salloc, "bash", "-c", BESIDE, str(agents_out)))
    (attempt,) = Result.from_path(tmp_path / "run").attempts
    assert attempt.cause == "finished"
    assert "Memory required" in agents_out.read_text()
