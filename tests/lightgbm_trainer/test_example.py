"""The example, with both libraries: from an HDF5 file to a model that is worth something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "boost.py"


@pytest.mark.mpi
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_the_example_boosts_the_tumours_of_a_file(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    pytest.importorskip("h5py")
    said = run_python(
        EXAMPLE,
        "--library",
        library,
        "--storage",
        "runs",
        "--name",
        "tumours",
        cwd=tmp_path,
        environ={"HPCTRAIN_LAUNCHER": "local"},
    )
    (auc,) = re.findall(r"^held-out AUC  (\S+), after \d+ rounds$", said.stdout, re.MULTILINE)
    assert float(auc) > 0.98
    assert (tmp_path / "runs" / "tumours" / "status.json").exists()
