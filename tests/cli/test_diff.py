"""How two runs differ, of real runs of one script."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.diff import render, to_json
from hpctrain.cli.json_output import schema
from hpctrain.launch.run_diff import Difference, compare_runs
from hpctrain.rundir.paths import RunPaths
from tests.cli.test_json_output import check
from tests.processes import run_python

GOLDEN = Path(__file__).parent / "golden"
SCRIPT = """
import sys

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


def train(config):
    import model

    hpctrain.report({"loss": config["lr"] * model.FACTOR})


if __name__ == "__main__":
    name, lr, workers = sys.argv[1:]
    DataParallelTrainer(
        train,
        train_loop_config={"lr": float(lr), "depth": 3},
        scaling_config=ScalingConfig(num_workers=int(workers)),
        run_config=RunConfig(name=name, verbose=0, launcher="local"),
    ).fit()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a, b as a, and c with another rate, a worker more and an edited module."""
    place = tmp_path_factory.mktemp("runs")
    (place / "train.py").write_text(SCRIPT)
    (place / "model.py").write_text("FACTOR = 1\n")
    for name, lr, workers in (("a", "0.5", "1"), ("b", "0.5", "1"), ("c", "0.25", "2")):
        if name == "c":
            (place / "model.py").write_text("# other\nFACTOR = 8\n")
        argv = [sys.executable, "train.py", name, lr, workers]
        subprocess.run(argv, cwd=place, check=True, timeout=120)
    return place


def diff(place: Path, *words: str, code: int = 0, **environ: str) -> str:
    done = run_python(
        "-m", "hpctrain.cli", "diff", *words, cwd=place, environ=environ, code=code, timeout_s=60
    )
    return done.stdout + done.stderr


def test_equal_runs_differ_in_name_place_and_time_alone(runs: Path) -> None:
    lines = diff(runs, "a", "b").splitlines()
    # Each is called by its name, and draws a seed.
    assert [line for line in lines[2:] if not line.startswith(("argv: ", "seed: "))] == []


def test_what_differs_is_shown_with_both_values(runs: Path) -> None:
    said = diff(runs, "a", "c")
    assert "train_loop_config['lr']: 0.5 -> 0.25" in said or "train_loop_config[lr]" in said, said
    assert "depth" not in said
    assert "scaling_config.num_workers: 1 -> 2" in said
    assert "module model.py: " in said
    assert "metrics.loss: 0.5 -> 2.0" in said
    assert "versions" not in said


def test_the_code_is_compared_as_the_runs_keep_it(runs: Path) -> None:
    said = diff(runs, "a", "c", "--code")
    assert said.splitlines() == [
        "--- first/model",
        "+++ second/model",
        "@@ -1 +1,2 @@",
        "-FACTOR = 1",
        "+# other",
        "+FACTOR = 8",
    ]
    assert diff(runs, "a", "b", "--code") == "no difference\n"
    assert "Give one of them" in diff(runs, "a", "b", "--code", "--json", code=2)


def test_a_run_whose_spec_cannot_be_read_differs_without_values(runs: Path, tmp_path: Path) -> None:
    import shutil

    copied = tmp_path / "c"
    shutil.copytree(runs / "hpctrain_runs" / "c", copied)
    (copied / "spec.pkl").write_bytes(b"damaged")
    said = diff(runs, "a", str(copied))
    assert "train_loop_config: another one -> another one" in said
    assert "keeps no modules" in diff(runs, "a", str(copied), "--code", code=2)


def test_the_json_is_what_the_schema_says(runs: Path) -> None:
    check(json.loads(diff(runs, "a", "c", "--json")), schema("diff"))
    empty: list[Any] = []
    check({"format": 1, **to_json(Path("a"), Path("b"), empty)}, schema("diff"))


def test_what_is_too_long_for_a_line_takes_three() -> None:
    found = [
        Difference(field="argv", first="x" * 30, second="y" * 30),
        Difference(field="site", first="a", second="b\x1b[2J"),
    ]
    text = render(Path("a"), Path("b"), found, width=60)
    assert text.splitlines()[2:5] == ["argv:", f"  - {'x' * 30}", f"  + {'y' * 30}"]
    assert "\x1b" not in text
    assert len(render(Path("a"), Path("b"), found, width=None).splitlines()) == 4


CASES: dict[str, list[Difference]] = {
    "no difference": [],
    "short and long values": [
        Difference(field="config.lr", first="0.1", second="0.2"),
        Difference(field="config.warmup_steps", first="100", second="-"),
        Difference(
            field="argv",
            first="train.py --data /scratch/data/imagenet --epochs 90 --seed 1",
            second="train.py --data /scratch/data/imagenet --epochs 90 --seed 17",
        ),
        Difference(
            field="site",
            first="/scratch/sites/alps-cpu-long-jobs.toml",
            second="/scratch/sites/alps-gpu-long-jobs.toml",
        ),
        Difference(field="description", first="", second="words " * 20),
        Difference(
            field="error",
            first="-",
            second="rank 3 on node7 failed: RuntimeError: Expected all tensors to be on the same "
            "device, but found at least two devices\x1b[2J",
        ),
    ],
}


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_is_as_in_the_golden_file(width: int, request: pytest.FixtureRequest) -> None:
    runs = [Path(f"/scratch/project_465000000/somebody/hpctrain_runs/{name}") for name in "ab"]
    text = "".join(
        f"== {name}\n{render(*runs, found, width=width)}\n" for name, found in CASES.items()
    )
    golden = GOLDEN / f"diff-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert max(map(len, text.splitlines())) <= width


def test_what_is_no_run_is_refused(runs: Path) -> None:
    assert "is not a run directory" in diff(runs, "a", "nothing", code=2)


def test_two_names_of_one_interpreter_are_no_difference(runs: Path, tmp_path: Path) -> None:
    one = next(runs.rglob("plan.json")).parent
    copies = []
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to(sys.executable)
        copy = tmp_path / f"run of {name}"
        shutil.copytree(one, copy)
        plan = json.loads((copy / "plan.json").read_text())
        (copy / "plan.json").write_text(json.dumps({**plan, "python": str(tmp_path / name)}))
        copies.append(RunPaths(copy))
    assert "python" not in {each.field for each in compare_runs(*copies)}
    (tmp_path / "python3").unlink()
    assert "python" in {each.field for each in compare_runs(*copies)}
