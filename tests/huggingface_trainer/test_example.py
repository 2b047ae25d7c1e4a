"""The example in its other form, and predictions with what it has trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_digits.py"


@pytest.mark.mpi
def test_two_ranks_read_digits_with_a_loop_of_accelerate(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, EXAMPLE, "--form=accelerate", "--epochs=4", "--storage=runs"],
        cwd=tmp_path,
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert said.returncode == 0, said.stderr
    (accuracy,) = re.findall(r"^held-out accuracy  (\S+)$", said.stdout, re.MULTILINE)
    assert float(accuracy) > 0.4, "a guess is right once in ten"
    assert (
        len(list((tmp_path / "runs" / "transformers-digits-accelerate" / "checkpoints").glob("0*")))
        == 4
    )
