"""A Lightning script gives the same losses on a laptop and in a job on two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_lightning.py"
TIMEOUT_S = 180


def run(storage: Path, name: str, environ: dict[str, str], *options: str) -> Result:
    done = run_python(
        EXAMPLE,
        "--epochs=2",
        f"--storage={storage}",
        f"--name={name}",
        *options,
        environ=environ,
        timeout_s=TIMEOUT_S,
    )
    assert "held-out accuracy" in done.stdout
    return Result.from_path(storage / name)


def reported(result: Result) -> list[Any]:
    return [(m["step"], m["loss"], m["accuracy"]) for m in result.metrics_history]


@pytest.mark.slurm
def test_a_job_on_two_nodes_has_the_losses_of_a_laptop(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    pytest.importorskip("lightning")
    laptop = run(tmp_path, "laptop", {"HPCTRAIN_LAUNCHER": "local"})
    job = run(tmp_path, "job", {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}, "--nodes=2")
    assert len(reported(laptop)) == 2
    assert reported(job) == reported(laptop)
    assert (len(job.job_ids), len(job.nodes)) == (1, 2)
