"""The comparison with Ray Data runs to its end, with a stand-in for Ray, and compares answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "against_ray_data.py"
OPERATIONS = ("batches", "rows", "groups", "sort", "aggregates")


def run_against(stand_in: str, folder: Path, *options: str | Path) -> subprocess.CompletedProcess:
    (folder / "ray").mkdir()
    (folder / "ray" / "__init__.py").write_text("def init(**options): pass\n")
    (folder / "ray" / "data.py").write_text(stand_in)
    return subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "1", "--sizes", "2", *options],
        env=os.environ | {"RAY_PYTHON": sys.executable, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_every_operation_is_measured_and_gives_the_same_answer(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    done = run_against("from hpctrain.data import read_parquet\n", tmp_path, "--json", file)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == [f"{name} 2k rows" for name in OPERATIONS]
    assert all(set(row["samples"]) == {"hpctrain", "Ray Data"} for row in rows)
    assert "goal" in done.stdout


def test_another_answer_is_an_error(tmp_path: Path) -> None:
    other = (
        "from hpctrain.data import read_parquet as read\n"
        "def read_parquet(path): return read(path).limit(1999)\n"
    )
    done = run_against(other, tmp_path, "--only", "aggregates")
    assert done.returncode != 0
    assert "Not equal to tolerance" in done.stderr
