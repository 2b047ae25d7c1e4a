"""What a run promises, however its ranks are reached: started, there already, or by a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.mpi
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
TIMEOUT_S = 180

SCRIPT = """
import itertools
import sys
import time

import hpctrain
import hpctrain.collective
from hpctrain import (
    Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig
)

storage, workers = sys.argv[1], int(sys.argv[2])

def saved(step):
    is_first = hpctrain.get_context().get_world_rank() == 0
    return Checkpoint.from_dict({"step": step}) if is_first else None

def returns():
    for step in range(3):
        hpctrain.report({"step": step, "val/loss": 1 / (step + 1)})
    return {"steps": 3}

def saves():
    seen = []
    for step in range(3):
        hpctrain.report({"step": step}, saved(step))
        last = hpctrain.get_all_reported_checkpoints()[-1]
        # It is there when report() returns, and whole.
        seen.append((last.metrics["step"], last.checkpoint.to_dict()["step"]))
    return seen

def stops():
    for step in itertools.count():
        time.sleep(0.01)  # a step of work
        hpctrain.report({"step": step}, saved(step) if step == 1 else None)

def asks():
    for step in itertools.count():
        time.sleep(0.01)
        hpctrain.report({"step": step})
        if hpctrain.should_stop():
            hpctrain.report({"step": step, "last": 1}, saved(step))
            return step

def fails():
    resumed = hpctrain.get_checkpoint()
    first = 0 if resumed is None else resumed.to_dict()["step"] + 1
    for step in range(first, 4):
        if step == 2 and resumed is None:
            # Rank 0's checkpoint of the first report is committed.
            hpctrain.collective.barrier()
            raise ValueError("the loss is NaN")
        hpctrain.report({"step": step}, saved(step) if step == 0 else None)
    return first

def fit(train, **config):
    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=storage, name=train.__name__, verbose=0, **config),
    ).fit()

if __name__ == "__main__":
    fit(returns)
    fit(saves, checkpoint_config=CheckpointConfig(num_to_keep=2))
    fit(stops, stop={"step": 3})
    fit(asks, stop={"step": 2})
    fit(fails)
"""

REPORTS: dict[str, list[tuple[int, int, dict[str, Any]]]] = {
    "returns": [(1, n + 1, {"step": n, "val/loss": 1 / (n + 1)}) for n in range(3)],
    "saves": [(1, n + 1, {"step": n}) for n in range(3)],
    "fails": [(1, 1, {"step": 0}), (1, 2, {"step": 1})],
    "fails, again": [(2, n + 1, {"step": n}) for n in range(1, 4)],
}
CHECKPOINTS = {"returns": [], "saves": [1, 2], "stops": [1], "fails": [0]}
RETURNED = {"returns": {"steps": 3}, "saves": [(n, n) for n in range(3)], "stops": None}
EVENTS = ["attempt-started", "attempt-ended", "run-ended"]


def laptop(script: list[str], cluster: VirtualCluster) -> tuple[list[str], dict[str, str]]:
    return [*script, "2"], {"HPCTRAIN_LAUNCHER": "local"}


def interpreter(script: list[str], cluster: VirtualCluster) -> tuple[list[str], dict[str, str]]:
    return [*script, "0"], {}


def ranks(script: list[str], cluster: VirtualCluster) -> tuple[list[str], dict[str, str]]:
    return [MPIEXEC, "-n", "2", *script, "2"], {}


def allocation(script: list[str], cluster: VirtualCluster) -> tuple[list[str], dict[str, str]]:
    return ["salloc", "--quiet", "--nodes=2", "--ntasks=2", *script, "2"], cluster.environ


def read_reports(path: Path) -> list[tuple[int, int, dict[str, Any]]]:
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [(line["attempt"], line["report"], line["metrics"]) for line in lines]


def read_checkpoints(path: Path) -> list[int]:
    found = Result.from_path(path).best_checkpoints or []
    return sorted(metrics["step"] for _, metrics in found)


def read_ends(path: Path) -> list[str]:
    return [e["event"] for e in read_events(RunPaths(path)) if e["event"] in EVENTS]


@pytest.mark.slurm
@pytest.mark.parametrize("home", [laptop, interpreter, ranks, allocation])
def test_a_run_does_the_same_however_its_ranks_are_reached(
    home: Callable[..., tuple[list[str], dict[str, str]]],
    virtual_slurm: VirtualCluster,
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def run() -> int:
        words, variables = home([sys.executable, str(script), str(tmp_path)], virtual_slurm)
        done = subprocess.run(
            words,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode in (0, 4), done.stdout + done.stderr
        return done.returncode

    assert run() == 4
    for name, expected in RETURNED.items():
        result = Result.from_path(tmp_path / name)
        assert (result.state, result.error) == ("finished", None), name
        assert result.return_value == expected, name
        assert read_ends(tmp_path / name) == EVENTS, name
    for name, steps in CHECKPOINTS.items():
        assert read_checkpoints(tmp_path / name) == steps, name
    for name in ("returns", "saves", "fails"):
        assert read_reports(tmp_path / name) == REPORTS[name], name
    # The criterion was met at the third report. Ranks agree on a later one.
    reports = read_reports(tmp_path / "stops")
    assert reports == [(1, n + 1, {"step": n}) for n in range(len(reports))]
    assert len(reports) > 3
    *reports, last = read_reports(tmp_path / "asks")
    step = Result.from_path(tmp_path / "asks").return_value
    assert reports == [(1, n + 1, {"step": n}) for n in range(step + 1)]
    assert last == (1, step + 2, {"step": step, "last": 1})
    assert read_checkpoints(tmp_path / "asks") == [step]
    failed = Result.from_path(tmp_path / "fails")
    assert failed.state == "failed"
    assert " failed after report 2: ValueError: the loss is NaN\n" in str(failed.error)
    before = {name: read_reports(tmp_path / name) for name in RETURNED}

    assert run() == 0
    resumed = Result.from_path(tmp_path / "fails")
    assert (resumed.state, resumed.error, resumed.return_value) == ("finished", None, 1)
    assert read_reports(tmp_path / "fails") == REPORTS["fails"] + REPORTS["fails, again"]
    assert read_ends(tmp_path / "fails") == EVENTS * 2
    # What was finished is as it was.
    assert {name: read_reports(tmp_path / name) for name in RETURNED} == before
