"""The benchmarks run: what they say is not looked at here, only that they say it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def measure(
    folder: Path, benchmark: str, *options: str, timeout_s: float = 120
) -> tuple[dict[str, Any], str]:
    """Run a benchmark; return what it measured, and what it said."""
    file = folder / "measured.json"
    done = run_python(
        BENCHMARKS / benchmark, *options, "--json", file, cwd=folder, timeout_s=timeout_s
    )
    return json.loads(file.read_text()), done.stdout


@pytest.mark.mpi
def test_the_cheapest_benchmarks_run_and_write_down_what_they_measured(tmp_path):
    measured, said = measure(
        tmp_path, "spine.py", "--rounds", "1", "--only", "import", "bootstrap", "--sizes", "2"
    )

    assert measured["machine"]["cpus"] >= 1
    rows = {row["name"]: row for row in measured["rows"]}
    assert {"import", "bootstrap 2 ranks"} <= set(rows)
    for row in rows.values():
        assert row["verdicts"]
        assert all(sample["wall_s"] > 0 for taken in row["samples"].values() for sample in taken)
        assert row["name"] in said


@pytest.mark.mpi
def test_steps_are_measured_alone_and_in_a_run(tmp_path):
    measured, _ = measure(tmp_path, "resilience.py", "--rounds", "1", "--only", "control")

    (row,) = measured["rows"]
    assert set(row["samples"]) == {"in a run", "alone"}
    assert all(sample["wall_s"] > 0 for taken in row["samples"].values() for sample in taken)


@pytest.mark.mpi
def test_a_restart_with_torch_is_measured_beside_a_cold_start(tmp_path):
    pytest.importorskip("torch")
    measured, _ = measure(tmp_path, "resilience.py", "--rounds", "1", "--only", "restart-torch")

    (row,) = measured["rows"]
    assert set(row["samples"]) == {"restart", "cold start", "cold start, not forked"}
    assert all(taken[0]["wall_s"] > 0 for taken in row["samples"].values())


def test_agents_that_relay_are_measured_beside_those_with_a_connection_each(tmp_path):
    few = ["--beats", "1", "--interval", "0.2", "--rounds", "1"]
    measured, said = measure(tmp_path, "hub_tree.py", "--sizes", "16", "40", *few)

    rows = [(row["nodes"], row["fanout"], row["connections"]) for row in measured["rows"]]
    shapes = [row["shape"] for row in measured["rows"]]
    assert shapes == ["tree", "tree", "flat"] * 2
    assert rows[:3] == [(16, 8, 8), (16, 32, 16), (16, 32, 16)]
    assert rows[3:] == [(40, 8, 8), (40, 32, 32), (40, 32, 40)]
    assert len(measured["models"]["tree"]["beat_cpu"]["errors"]) == 4
    assert "40 nodes, tree of 32" in said


@pytest.mark.mpi
def test_a_scaler_is_fitted_by_ranks_and_by_scikit_learn(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("h5py")
    measured, _ = measure(tmp_path, "preprocessors.py", "--rounds", "1", "--sizes", "100000")

    (row,) = measured["rows"]
    assert set(row["samples"]) == {"2 ranks", "1 rank", "partial_fit"}
    assert all(sample["wall_s"] > 0 for taken in row["samples"].values() for sample in taken)


@pytest.mark.mpi
def test_runs_are_struck_at_random_points_and_written_down(tmp_path):
    measured, said = measure(tmp_path, "chaos.py", "--points", "2", "--seed", "3", timeout_s=200)

    assert "seed 3" in said
    assert [point["passed"] for point in measured["points"]] == [True, True]


@pytest.mark.mpi
def test_checkpoints_are_measured_against_the_disk_and_other_libraries(tmp_path):
    pytest.importorskip("torch")
    options = ["--rounds", "1", "--only", "save", "load", "--sizes", "48"]
    measured, _ = measure(tmp_path, "checkpoints.py", *options, timeout_s=400)

    rows = {row["name"]: row for row in measured["rows"]}
    assert {"DCP", "gather + torch.save", "ours"} <= set(rows["save sharded, 4 ranks"]["samples"])
    for name in ("resume cold, 4 ranks", "reshard 2 to 3 ranks", "replicated, 4 ranks"):
        assert rows[name]["notes"]["bytes read / bytes of the files"] == 1.0


@pytest.mark.mpi
def test_boosting_is_measured_against_the_library_and_its_models_are_compared(tmp_path):
    pytest.importorskip("xgboost")
    measured, _ = measure(
        tmp_path, "trees.py", "--rounds", "1", "--only", "xgboost", "--sizes", "2", timeout_s=200
    )

    (row,) = measured["rows"]
    assert set(row["samples"]) == {"hpctrain", "alone", "by hand"}
    assert "apart" in row["notes"]["AUC"]


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_arms():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from arms import Goal, Sample, judge
    finally:
        sys.path.remove(str(BENCHMARKS))
    # The machine is ten times slower in the last round.
    samples = {
        "ours": [Sample(2.0), Sample(2.2), Sample(20.0)],
        "bare": [Sample(1.0), Sample(1.0), Sample(10.0)],
    }

    (verdict,) = judge(
        "row", "ours", samples, [Goal(against="bare", factor=1.5, plus_s=1)]
    ).verdicts

    assert verdict.ratio == 2.0
    assert verdict.of_allowed == pytest.approx(0.88)
    assert verdict.reached


def test_a_goal_can_be_for_cpu_seconds():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from arms import Goal, Sample, judge
    finally:
        sys.path.remove(str(BENCHMARKS))
    samples = {"ours": [Sample(1.0, 3.0)], "bare": [Sample(2.0, 4.0)]}
    goals = [Goal(against="bare", factor=0.6, of_cpu=of_cpu) for of_cpu in (False, True)]

    wall, cpu = judge("row", "ours", samples, goals).verdicts

    assert (wall.ratio, wall.reached) == (0.5, True)
    assert (cpu.ratio, cpu.reached) == (0.75, False)
    assert cpu.goal == "<= 0.6x bare, CPU"


@pytest.mark.mpi
def test_a_prediction_is_measured_against_a_loop_by_hand(tmp_path):
    measured, _ = measure(
        tmp_path, "predict.py", "--rounds", "1", "--only", "lightgbm", "--sizes", "20000"
    )

    (row,) = measured["rows"]
    assert len(row["samples"]) == 4
    assert set(row["notes"]["start to first row, s"]) < set(row["samples"])


def test_a_page_of_ranks_is_written_and_drawn(tmp_path):
    pytest.importorskip("textual")
    measured, _ = measure(tmp_path, "top.py", "--rounds", "1", "--sizes", "40")

    assert [set(row["samples"]) for row in measured["rows"]] == [
        {"live.json", "5 ms"},
        {"hpctrain top", "DataTable", "100 ms"},
    ]


def test_the_count_of_waits_is_measured(tmp_path):
    measured, said = measure(tmp_path, "loop_time.py", "--rounds", "1")

    assert {name: len(taken) for name, taken in measured["samples"].items()} == {
        "counted": 1,
        "not counted": 1,
    }
    assert "of a step of 1 ms" in said
