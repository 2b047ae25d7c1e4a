"""The output of Dask or Spark, from the example that reads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "parquet_parts.py"


@pytest.mark.mpi
def test_the_example_learns_from_parts(tmp_path: Path):
    said = subprocess.run(
        [sys.executable, str(EXAMPLE), "--workers=2", "--epochs=4", f"--storage={tmp_path}"],
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert len(list((tmp_path / "digits-parts").iterdir())) == 12
    accuracy = re.search(r"held-out accuracy +(0\.\d+)", said.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85
