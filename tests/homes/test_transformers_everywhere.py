"""A `transformers.Trainer`, and a loop of Accelerate: the same on a laptop and in a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_digits.py"
TIMEOUT_S = 240


def run(storage: Path, environ: dict[str, str], *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--epochs=2", f"--storage={storage}", *options],
        env={**os.environ, **environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(path: Path) -> list[tuple[float, float]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line)["metrics"] for line in lines]
    return [(metrics["epoch"], metrics["loss"]) for metrics in reports]


@pytest.mark.slurm
@pytest.mark.parametrize("form", ["trainer", "accelerate"])
def test_a_job_on_two_nodes_has_the_losses_of_a_laptop(
    virtual_slurm: VirtualCluster, tmp_path: Path, form: str
) -> None:
    pytest.importorskip("transformers")
    options = [f"--form={form}", "--workers=4", "--name=digits"]
    said = run(tmp_path / "laptop", {"HPCTRAIN_LAUNCHER": "local"}, *options)
    accuracy = re.search(r"held-out accuracy +(\d\.\d+)", said)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.2, "better than a guess"
    run(
        tmp_path / "job",
        {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""},
        *options,
        "--nodes=2",
        "--skip-predictions",
    )
    found = losses(tmp_path / "job" / "digits")
    assert len(found) >= 2
    assert found == losses(tmp_path / "laptop" / "digits")
    result = Result.from_path(tmp_path / "job" / "digits")
    assert (len(result.job_ids), len(result.nodes)) == (1, 2)
