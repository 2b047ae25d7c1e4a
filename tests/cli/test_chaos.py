"""``hpctrain chaos`` tells scripts that lose nothing from those that do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "chaos" / "numpy_model.py"


def chaos(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "chaos", *map(str, words)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.mpi
def test_a_script_that_resumes_exactly_passes_and_the_seed_is_printed(tmp_path: Path) -> None:
    options = ("--local", "--rounds", 2, "--seed", 7, "--faults", "kill-rank,bit-flip")

    done = chaos(tmp_path, *options, MODEL, "--workers", 2)

    assert done.returncode == 0, done.stdout + done.stderr
    first, undisturbed, *rounds = done.stdout.splitlines()
    assert first == "seed 7"
    assert undisturbed.startswith("undisturbed, twice the same:")
    assert [line.split()[:2] for line in rounds] == [["1", "same"], ["2", "same"]]
    assert list(tmp_path.iterdir()) == [], "its runs lie elsewhere"


@pytest.mark.mpi
def test_a_script_that_forgets_its_random_state_fails_and_says_where(tmp_path: Path) -> None:
    options = ("--local", "--rounds", 1, "--seed", 7, "--faults", "kill-executor", "--keep", "all")

    done = chaos(tmp_path, *options, MODEL, "--workers", 2, "--forgetful", "--steps", 30)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "1 DIFFERENT  kill-executor: rank-" in done.stdout
    assert "loss is" in done.stdout
    assert "1 of 1 rounds ended differently. To repeat: --seed 7" in done.stderr
    assert (tmp_path / "all" / "undisturbed" / "storage").is_dir()


@pytest.mark.slurm
def test_a_script_is_broken_on_a_virtual_cluster_of_its_own(tmp_path: Path) -> None:
    options = ("--rounds", 1, "--nodes", 2, "--faults", "kill-executor")

    done = chaos(tmp_path, *options, MODEL, "--workers", 2, "--nodes", 2)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "(2 attempts, " in done.stdout


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = chaos(tmp_path, "--local", "--faults", "meteorite", MODEL)
    assert done.returncode == 2
    assert "--faults=meteorite: one of kill-rank, kill-commit" in done.stderr


def test_what_needs_a_cluster_is_refused_without_one(tmp_path: Path) -> None:
    done = chaos(tmp_path, "--local", "--faults", "requeue", MODEL)
    assert done.returncode == 2
    assert "--faults=requeue is not possible here (not with --local)" in done.stderr


def test_the_kinds_are_listed_without_a_script(tmp_path: Path) -> None:
    done = chaos(tmp_path, "--list")
    assert done.returncode == 0
    assert "cut-network         take a node off the network for 3 s" in done.stdout
