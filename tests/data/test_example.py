"""The output of Dask or Spark, from the example that reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "parquet_parts.py"


@pytest.mark.mpi
def test_the_example_learns_from_parts(tmp_path: Path):
    said = run_python(
        EXAMPLE,
        "--workers=2",
        "--epochs=4",
        f"--storage={tmp_path}",
        environ={"HPCTRAIN_LAUNCHER": "local"},
        timeout_s=200,
    )
    assert len(list((tmp_path / "digits-parts").iterdir())) == 12
    accuracy = re.search(r"held-out accuracy +(0\.\d+)", said.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85
