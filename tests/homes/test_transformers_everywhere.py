"""Transformers, by its Trainer or with Accelerate, has the same losses on a laptop and in a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python
from tests.runs import reported

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_digits.py"
TIMEOUT_S = 240


def run(storage: Path, environ: dict[str, str], *options: str) -> list[tuple[float, float]]:
    argv = (EXAMPLE, "--skip-predictions", f"--storage={storage}", "--name=digits", *options)
    run_python(*argv, environ={**environ, "HF_HUB_OFFLINE": "1"}, timeout_s=TIMEOUT_S)
    return [(metrics["epoch"], metrics["loss"]) for metrics in reported(storage / "digits")]


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("form", "num_workers", "epochs"),
    # The Trainer ends with a report of the whole training.
    [
        ("trainer", 4, [1.0, 2.0, 2.0]),
        pytest.param("accelerate", 2, [1], marks=pytest.mark.long),
    ],
)
def test_a_job_on_two_nodes_has_the_losses_of_a_laptop(
    virtual_slurm: VirtualCluster, tmp_path: Path, form: str, num_workers: int, epochs: Any
) -> None:
    pytest.importorskip("transformers")
    options = [f"--form={form}", f"--workers={num_workers}", f"--epochs={int(epochs[-1])}"]
    laptop = run(tmp_path / "laptop", {"HPCTRAIN_LAUNCHER": "local"}, *options)
    in_job = {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    job = run(tmp_path / "job", in_job, "--nodes=2", *options)
    assert [epoch for epoch, _ in job] == epochs
    assert job == laptop
    result = Result.from_path(tmp_path / "job" / "digits")
    assert (len(result.job_ids), len(result.nodes)) == (1, 2)
