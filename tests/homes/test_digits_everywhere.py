"""The same script gives the same losses in every home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until_final

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
MPIEXEC = Path(sys.executable).with_name("mpiexec")
TIMEOUT_S = 180


def run(argv: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reported(path: Path) -> list[tuple[int, float, float]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    return [(r["report"], r["metrics"]["loss"], r["metrics"]["accuracy"]) for r in reports]


@pytest.mark.slurm
@pytest.mark.matrix("torch: all homes, equal losses", ci=False)
def test_digits_has_the_same_losses_in_every_home(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    here = dict(os.environ)
    cluster = {**here, **virtual_slurm.environ}
    two_nodes = ["--nodes=2", "--ntasks-per-node=2"]

    def digits(name: str) -> list[str]:
        options = ["--epochs=2", f"--storage={tmp_path}", f"--name={name}"]
        return [sys.executable, str(DIGITS), *options]

    run(digits("laptop"), {**here, "HPCTRAIN_LAUNCHER": "local"})
    run([str(MPIEXEC), "-n", "4", *digits("mpiexec")], here)
    run(["salloc", "--quiet", *two_nodes, *digits("salloc")], cluster)
    run(["srun", "--mpi=pmi2", *two_nodes, *digits("srun")], cluster)
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --output={tmp_path}/job.out\n{' '.join(digits('sbatch'))}"
    )
    run(["sbatch", *two_nodes, str(script)], cluster)
    said = run([*digits("login"), "--nodes=2"], cluster)

    # sbatch --wait asks ever more seldom, up to every half minute.
    wait_until_final(tmp_path / "sbatch", timeout_s=TIMEOUT_S)
    assert "submitted login as job" in said
    losses = {path.name: reported(path) for path in tmp_path.iterdir() if path.is_dir()}
    assert set(losses) == {"laptop", "mpiexec", "salloc", "srun", "sbatch", "login"}
    for home, values in losses.items():
        assert values == losses["laptop"], home
    for home in ("salloc", "srun", "sbatch", "login"):
        result = Result.from_path(tmp_path / home)
        assert result.state == "finished"
        assert len(result.nodes) == 2
        assert len(result.job_ids) == 1


def test_the_debugger_home_runs_in_this_interpreter(tmp_path: Path) -> None:
    from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

    result = DataParallelTrainer(
        _train_inline,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="debug"),
    ).fit()
    assert result.return_value == os.getpid()
    assert result.metrics == {"loss": 1.0}
    assert result.state == "finished"


def _train_inline() -> int:
    from hpctrain import report

    report({"loss": 1.0})
    return os.getpid()
