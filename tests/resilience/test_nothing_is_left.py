"""Whatever is killed of a run on one machine, nothing of it stays in /tmp and /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /tmp of its own"),
]

SCRIPT = """
import os, signal, sys
from pathlib import Path
from hpctrain import Checkpoint, DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig

def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def train(config):
    import hpctrain
    import hpctrain.collective
    checkpoint = Checkpoint.from_dict({"a": 1})
    rank = hpctrain.get_context().get_world_rank()
    assert checkpoint.path.is_relative_to("/tmp")
    hpctrain.collective.barrier()
    if rank == 0:
        proxy = os.getppid()
        victims = {
            "rank": [os.getpid()],
            "executor": [config["executor"]],
            # The proxy sees it, and kills the ranks.
            "executor and mpiexec": [config["executor"], parent_of(proxy)],
            # The proxy first, before it sees the end of mpiexec.
            "all but ranks": [config["executor"], proxy, parent_of(proxy)],
        }
        if config["how"] == "nobody":
            raise ValueError("a rank fails, and nobody is killed")
        for pid in victims[config["how"]]:
            os.kill(pid, signal.SIGKILL)
    hpctrain.collective.barrier(timeout_s=60)

if __name__ == "__main__":
    try:
        DataParallelTrainer(
            train,
            train_loop_config={"how": sys.argv[2], "executor": os.getpid()},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=sys.argv[1], name=sys.argv[2].replace(" ", "-")),
        ).fit()
    except HpctrainError as error:
        raise SystemExit(4) from error
"""

# Process 1 of a namespace, whose /tmp and /dev/shm nobody else has.
ALONE = """
import os, subprocess, sys, time
for kind, place in (("tmpfs", "/tmp"), ("tmpfs", "/dev/shm"), ("proc", "/proc")):
    subprocess.run(["mount", "-t", kind, "own", place], check=True)
ended = []
deadline = time.monotonic() + 60
for how in sys.argv[3:]:
    argv = [sys.executable, *sys.argv[1:3], how]
    child = subprocess.Popen(argv, env={**os.environ, "HPCTRAIN_LAUNCHER": "local"})
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == child.pid:
            ended.append(os.waitstatus_to_exitcode(status))
        time.sleep(0.01 * (pid == 0))
print("ended", *ended, "left", sorted(os.listdir("/tmp") + os.listdir("/dev/shm")))
"""


def ended(folder: str, *kinds: str) -> str:
    """Run the script once for each kind of death, one after the other; return what came of it."""
    script = Path(folder, "train.py")
    script.write_text(SCRIPT)
    alone = ["unshare", "--mount", "--pid", "--fork", sys.executable, "-c", ALONE]
    argv = [*alone, str(script), folder, *kinds]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield folder


@pytest.mark.parametrize(
    ("how", "status"), [("nobody", 4), ("rank", 4), ("executor", -9), ("all but ranks", -9)]
)
def test_nothing_is_left_of_a_run_on_this_machine(how: str, status: int, folder: str) -> None:
    assert ended(folder, how) == f"ended {status} left []"


def test_the_next_run_removes_what_nobody_was_left_to_remove(folder: str) -> None:
    assert ended(folder, "executor and mpiexec", "nobody") == "ended -9 4 left []"
