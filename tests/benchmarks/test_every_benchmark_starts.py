"""Every benchmark that has a command line is started by a test, at its smallest, or says why not.

A benchmark uses insides of the package, and is run by hand: nothing else notices when one of them
has gone.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

TESTS = Path(__file__).resolve().parent
BENCHMARKS = TESTS.parents[1] / "benchmarks"

NOT_STARTED = {
    "pack.py": "it packs an environment, and that of the tests has some GiB",
    "pack_start.py": "it packs an environment, and that of the tests has some GiB",
    "shared_storage.py": "it packs an environment, and that of the tests has some GiB",
}


def start(
    folder: Path, benchmark: str, *options: object, environ: dict[str, str] | None = None
) -> str:
    done = run_python(BENCHMARKS / benchmark, *options, cwd=folder, timeout_s=200, environ=environ)
    return str(done.stdout)


def rows_of(path: Path) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]}


def test_every_benchmark_is_started_by_a_test_or_says_why_not() -> None:
    scripts = {
        path.name
        for path in BENCHMARKS.glob("*.py")
        if re.search(r'^if __name__ == "__main__":', path.read_text(), re.MULTILINE)
    }
    assert len(scripts) > 15
    started = {
        name
        for path in TESTS.glob("test_*.py")
        for name in re.findall(r'"(\w+\.py)"', path.read_text())
    }
    assert scripts - started == set()
    assert NOT_STARTED.keys() <= scripts


@pytest.mark.mpi
def test_the_watch_for_slow_nodes_is_measured_and_names_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "measured.json"
    start(tmp_path, "slow_nodes.py", "--rounds", 1, "--sizes", 10, "--json", file)

    taken, steps = rows_of(file).values()
    (verdict,) = taken["verdicts"]
    assert verdict["goal"] == "<= 0.002x 1 ms"
    assert verdict["allowed_s"] == 2e-6
    # A note alone takes longer than this.
    assert verdict["ours_s"] > 1e-8
    assert set(steps["samples"]) == {"watched", "not"}
    assert steps["notes"] == {"steps watched": 1000, "nodes named": 0}


@pytest.mark.mpi
def test_a_run_that_is_looked_at_is_measured_against_one_that_is_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("textual")
    pytest.importorskip("prometheus_client")
    file = tmp_path / "measured.json"
    few = ["--rounds", 1, "--only", "console", "--sizes", 2, 3]
    start(tmp_path, "resilience.py", *few, "--json", file)

    rows = rows_of(file)
    assert len(rows) == 3
    assert set(rows["console, CPU added to 1 ms"]["samples"]) == {"on", "off", "unrecorded"}


def test_two_versions_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    few = ["--only", "spine:import", "--rounds", 1, "--allowed", 1e9]
    start(tmp_path, "before_after.py", BENCHMARKS.parent, *few, "--json", file)

    (row, *_) = json.loads(file.read_text())["rows"]
    assert [len(taken) for taken in row["seconds"].values()] == [1, 1]


@pytest.mark.mpi
def test_a_sweep_of_trials_that_do_nothing_is_timed(tmp_path: Path) -> None:
    said = start(tmp_path, "sweep.py", 2, "--json", tmp_path / "sweep.json")
    assert re.search(r"2 trials that do nothing\n +hpctrain, s +\d+\.\d\d", said)
    (row,) = json.loads((tmp_path / "sweep.json").read_text()).values()
    assert row["numbers"]["hpctrain, s"] > 0


@pytest.mark.mpi
def test_a_sweep_is_struck_and_compared_with_the_undisturbed_one(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    few = ["--sweeps", 1, "--seed", 3, "--schedulers", "fifo"]
    said = start(tmp_path, "chaos_sweeps.py", *few, "--json", file)
    assert "seed 3" in said
    assert file.exists()


@pytest.mark.mpi
def test_files_of_runs_are_damaged_at_random(tmp_path: Path) -> None:
    assert re.search(r"^0 findings in \d+ s", start(tmp_path, "fuzz.py", "--cases", 20), re.M)


@pytest.mark.mpi
def test_calls_to_the_filesystem_are_counted(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    file = tmp_path / "measured.json"
    start(tmp_path, "site_cost.py", "--only", "files", "--ranks", 1, "--json", file)
    assert all(row["measured"] >= 0 for row in rows_of(file).values())


@pytest.mark.mpi
def test_steps_beside_a_checkpoint_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    picture = tmp_path / "steps.svg"
    start(tmp_path, "step_times.py", "--rounds", 1, "--mib", 48, "--output", picture)
    assert picture.read_text().startswith("<svg ")


@pytest.mark.mpi
def test_a_prediction_is_timed_where_there_is_no_ray(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    pytest.importorskip("pyarrow")
    file = tmp_path / "measured.json"
    variables = {"RAY_PYTHON": sys.executable, "HPCTRAIN_BENCHMARK_OURS_ONLY": "1"}
    few = ["--only", "xgboost", "--rounds", 1, "--sizes", 2]
    start(tmp_path, "against_ray.py", *few, "--json", file, environ=variables)
    (row,) = rows_of(file).values()
    assert set(row["samples"]) == {"hpctrain"}


@pytest.mark.slurm
def test_what_grows_with_restarts_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    start(tmp_path, "many_restarts.py", "--restarts", 1, "--json", file)
    assert [row["attempt"] for row in json.loads(file.read_text())["rows"]] == [1, 2]
