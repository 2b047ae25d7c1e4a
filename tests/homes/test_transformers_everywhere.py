"""A `transformers.Trainer` has the same losses on a laptop and in a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_digits.py"
TIMEOUT_S = 240


def run(storage: Path, environ: dict[str, str], *options: str) -> list[tuple[float, float]]:
    done = subprocess.run(
        [
            *(sys.executable, str(EXAMPLE), "--workers=4", "--epochs=2", "--skip-predictions"),
            *(f"--storage={storage}", "--name=digits", *options),
        ],
        env={**os.environ, **environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (storage / "digits" / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line)["metrics"] for line in lines]
    return [(metrics["epoch"], metrics["loss"]) for metrics in reports]


@pytest.mark.slurm
def test_a_job_on_two_nodes_has_the_losses_of_a_laptop(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    laptop = run(tmp_path / "laptop", {"HPCTRAIN_LAUNCHER": "local"})
    job = run(tmp_path / "job", {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}, "--nodes=2")
    assert [epoch for epoch, _ in job] == [1.0, 2.0, 2.0]
    assert job == laptop
    result = Result.from_path(tmp_path / "job" / "digits")
    assert (len(result.job_ids), len(result.nodes)) == (1, 2)
