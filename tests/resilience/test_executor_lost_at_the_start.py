"""An executor is killed while its ranks start: they leave by themselves, at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.testing.chaos.processes import await_end, find_processes
from tests.waiting import wait_until

pytestmark = pytest.mark.mpi
PATIENCE_S = 60.0
# Far less than the minute for which a rank waits for the agent of its node.
AT_ONCE_S = 15.0

# Rank 1 never gets there; the others wait for it.
SITECUSTOMIZE = """
import os, sys, time
from pathlib import Path

def written(name):
    new = Path(os.environ["TRIAL"], name + ".new")
    new.write_text(str(os.getpid()))
    new.rename(new.with_suffix(""))

class Waits:
    def find_spec(self, name, path, target=None):
        if name != os.environ["WAITS_BEFORE"]:
            return
        rank = int(os.environ["PMI_RANK"])
        written(f"rank-{rank}")
        go = Path(os.environ["TRIAL"], "go")
        deadline = time.monotonic() + 120
        while (rank == 1 or not name.startswith("mpi4py")) and time.monotonic() < deadline:
            time.sleep(0.01)
            if go.exists():
                return

if "hpctrain.worker.main" in sys.orig_argv:
    sys.meta_path.insert(0, Waits())
"""
SCRIPT = """
import sys
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

if __name__ == "__main__":
    DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(storage_path=sys.argv[1], name="run"),
    ).fit()
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    for process in find_processes(tmp_path, script=script_of(tmp_path), local=True):
        process.send(signal.SIGKILL)


def script_of(trial: Path) -> str:
    return str(trial / "train.py")


def start(trial: Path, *, waits_before: str) -> subprocess.Popen[bytes]:
    """Start the run, and return once each of its ranks is about to import that module."""
    variables = {"TRIAL": str(trial), "PYTHONPATH": str(trial), "WAITS_BEFORE": waits_before}
    executor = subprocess.Popen(
        [sys.executable, script_of(trial), str(trial)],
        env={**os.environ, **variables, "HPCTRAIN_LAUNCHER": "local"},
    )
    begun = [trial / f"rank-{rank}" for rank in range(3)]
    wait_until(
        lambda: all(path.exists() for path in begun),
        "three ranks",
        timeout_s=PATIENCE_S,
        interval_s=0.01,
        process=executor,
    )
    return executor


def await_mpi_init(trial: Path) -> None:
    """Wait until rank 0 waits for the others in MPI_Init: it spins on the memory they share."""
    process = Path("/proc", (trial / "rank-0").read_text())
    deadline = time.monotonic() + PATIENCE_S
    until = None
    while time.monotonic() < deadline:
        used = int((process / "stat").read_text().rpartition(")")[2].split()[11])
        if until is None and "/dev/shm/" in (process / "maps").read_text():
            until = used + os.sysconf("SC_CLK_TCK") // 2
        if until is not None and used >= until:
            return
        time.sleep(0.01)
    raise AssertionError(f"rank 0 is not in MPI_Init: {process}")


def test_ranks_leave_mpi_init_when_their_executor_dies(trial: Path) -> None:
    executor = start(trial, waits_before="mpi4py")
    await_mpi_init(trial)
    executor.kill()
    executor.wait()
    assert await_end(trial, script=script_of(trial), timeout_s=AT_ONCE_S) == []


def test_ranks_that_come_after_the_death_of_their_executor_do_not_wait_for_it(trial: Path) -> None:
    executor = start(trial, waits_before="hpctrain.worker.main")
    executor.kill()
    executor.wait()
    (trial / "go").touch()
    assert await_end(trial, script=script_of(trial), timeout_s=AT_ONCE_S) == []
