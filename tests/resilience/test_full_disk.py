"""A disk that is full for a moment, with the run directory and everybody's output on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.execute.process import process_start_time
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from tests.waiting import wait_until

pytestmark = pytest.mark.mpi
PATIENCE_S = 90.0
FULL_S = 8.0

SCRIPT = """
import os, sys, time
import hpctrain, hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    rank = hpctrain.get_context().get_world_rank()
    attempt = hpctrain.get_context().world.attempt
    with open(f"{config['outside']}/pid-{attempt}-{rank}", "w") as file:
        file.write(str(os.getpid()))
    while step < 60:
        step += 1
        hpctrain.collective.barrier(timeout_s=60)
        time.sleep(0.05)   # a step of work
        saved = Checkpoint.from_dict({"step": step}) if step % 5 == 0 and rank == 0 else None
        hpctrain.report({"step": step}, saved)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"outside": sys.argv[1]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=sys.argv[2], failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("a small filesystem of our own needs root (mount)")
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8M", "hpctrain-test", str(disk)]
    subprocess.run(argv, check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def test_a_run_goes_on_after_a_full_disk_that_its_own_output_goes_to(
    tmp_path: Path, disk: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    metrics = disk / "run" / "metrics.jsonl"
    with open(disk / "output", "ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "train.py"), str(tmp_path), str(disk)],
            env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: metrics.exists() and '"step":12}' in metrics.read_text(), "step 12")
        filler = fill(disk)
        pid = int((tmp_path / "pid-1-0").read_text())
        wait_until(lambda: process_start_time(pid) is None, "rank 0 fails")
        # Longer than five attempts take, each of which would fail at its first report.
        time.sleep(FULL_S)
        said = (disk / "output").read_text(errors="replace")
        assert process.poll() is None, f"the executor ended on a full disk:\n{said}"
        filler.unlink()
        status = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert status == 0, (disk / "output").read_text()
    result = Result.from_path(disk / "run")
    assert result.state == "finished"
    assert [m["step"] for m in result.metrics_history] == list(range(1, 61))
    # What the ledger had no room for was written when it had.
    names = [event["event"] for event in read_events(RunPaths(disk / "run"))]
    assert names.count("attempt-started") == names.count("attempt-ended") == 2
    assert names[-2:] == ["executor-ended", "run-ended"]
