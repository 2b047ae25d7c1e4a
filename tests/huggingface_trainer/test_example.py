"""The example in its other form, and predictions with what it has trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_python

pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_digits.py"


@pytest.mark.mpi
def test_two_ranks_read_digits_with_a_loop_of_accelerate(tmp_path: Path) -> None:
    said = run_python(
        EXAMPLE,
        "--form=accelerate",
        "--epochs=4",
        "--storage=runs",
        cwd=tmp_path,
        environ={"HPCTRAIN_LAUNCHER": "local"},
        timeout_s=240,
    )
    (accuracy,) = re.findall(r"^held-out accuracy  (\S+)$", said.stdout, re.MULTILINE)
    assert float(accuracy) > 0.4, "a guess is right once in ten"
    assert (
        len(list((tmp_path / "runs" / "transformers-digits-accelerate" / "checkpoints").glob("0*")))
        == 4
    )
