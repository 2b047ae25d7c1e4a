"""What a step leaves behind when it is ended: nothing, on any node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.testing.slurm import VirtualCluster

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]

WHEEL = Path(sys.executable).parent / "mpiexec"
OPEN_MPI = shutil.which("mpiexec.openmpi")

# It ends an mpiexec as soon as the step of its proxies is there, and so before they have called.
SCRIPT = """
import json, signal, subprocess, sys, time
from pathlib import Path
from hpctrain import environ
from hpctrain.execute.process import StepProcess
from hpctrain.execute.step_launcher import launcher_variables

kind, *argv = sys.argv[1:]
job_id = environ.variable("SLURM_JOB_ID")

def steps():
    asked = ["squeue", "--steps", "--noheader", "--format=%i", f"--jobs={job_id}"]
    listed = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.split()
    return [step for step in listed if step.partition(".")[2].isdigit()]

def start():
    variables = {**environ.environment(), **launcher_variables(kind, local=False)}
    step = StepProcess(argv, environment=variables, log=Path("step.out"), job_id=job_id)
    deadline = time.monotonic() + 30
    while steps() == [own]:
        assert time.monotonic() < deadline, step.last_lines()
    return step

kept = subprocess.Popen(["srun", "--overlap", "--mpi=none", "sleep", "60"])
while len(steps()) != 1:
    time.sleep(0.05)
(own,) = steps()
left = []
for number in range(3):
    step = start()
    if number == 2:
        beside = ["srun", "--overlap", "--mpi=none", "--nodes=3", "--ntasks=3", "true"]
        refused = subprocess.run(beside, capture_output=True, text=True, timeout=30).stderr
    # Bounded: who waits for the step ends with it, a minute later. SIGALRM ends this script.
    signal.alarm(30)
    step.kill()
    signal.alarm(0)
    left += [step for step in steps() if step != own]
is_kept = steps() == [own]
kept.terminate()
print(json.dumps({"left": left, "kept": is_kept, "refused": refused}))
"""


@pytest.mark.parametrize("kind", ["hydra", "openmpi"])
def test_a_step_that_is_ended_while_it_starts_is_gone_on_all_nodes(
    virtual_slurm: VirtualCluster, tmp_path: Path, kind: str
) -> None:
    argv = {
        "hydra": [str(WHEEL), "-n", "3", "-ppn", "1"],
        "openmpi": [str(OPEN_MPI), "-n", "3", "--map-by", "ppr:1:node"],
    }[kind]
    if argv[0] == "None":
        pytest.skip("no mpiexec.openmpi on PATH: apt-get install openmpi-bin")
    script = tmp_path / "end_steps.py"
    script.write_text(SCRIPT)
    salloc = ["salloc", "--quiet", "--nodes=3", "--ntasks-per-node=1", "--mem-per-cpu=64"]
    done = subprocess.run(
        [*salloc, sys.executable, str(script), kind, *argv, "sleep", "60"],
        cwd=tmp_path,
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["left"] == []
    assert seen["kept"], "a step of somebody else was ended"
    assert "Memory required" not in seen["refused"]
