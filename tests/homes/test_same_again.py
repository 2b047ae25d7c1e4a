"""A replay gives the same losses, to the last bit: with seeds of the script, and of the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python
from tests.waiting import wait_until_final

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
# Nothing in it is seeded: weights, order of the data, dropout, noise.
UNSEEDED = """
import os
import random
import sys

import hpctrain
import hpctrain.torch
from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def train():
    import numpy as np
    import torch

    import net

    model = hpctrain.torch.prepare_model(net.make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.linspace(0, 1, 64).unsqueeze(1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    for _ in range(3):
        for (x,) in loader:
            optimizer.zero_grad()
            noise = np.random.normal() * 0.1 + random.random() * 0.1
            loss = ((model(x) - 3 * x - noise) ** 2).mean()
            loss.backward()
            optimizer.step()
        hpctrain.report({"loss": loss.item(), "algo": os.environ.get("NCCL_ALGO", "")})


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(time="5")),
        run_config=RunConfig(name=sys.argv[1], storage_path="runs", verbose=0),
    )
    trainer.fit()
"""
NET = """
import torch


def make():
    return torch.nn.Sequential(
        torch.nn.Linear(1, 8), torch.nn.Dropout(0.25), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(UNSEEDED)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def reported(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def replay(place: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "hpctrain.cli", "replay", *words, cwd=place, environ=environ)


@pytest.mark.mpi
@pytest.mark.parametrize("forks", ["1", "0"])
def test_random_numbers_that_nothing_seeds_are_the_same_again(place: Path, forks: str) -> None:
    here = {
        "HPCTRAIN_LAUNCHER": "local",
        "HPCTRAIN_FORK_SERVER": forks,
        "NCCL_ALGO": "Ring",
        "PYTHONHASHSEED": "7",
    }
    for name in ("first", "second"):
        run_python("train.py", name, cwd=place, environ=here)
    first, second = (reported(place / "runs" / name) for name in ("first", "second"))
    # Two runs are as different as they always were.
    assert not {each["loss"] for each in first} & {each["loss"] for each in second}
    (place / "train.py").write_text("raise SystemExit('edited')\n")
    (place / "net.py").write_text("raise SystemExit('edited')\n")
    other = {**here, "NCCL_ALGO": "Tree", "PYTHONHASHSEED": "8", "NCCL_DEBUG": "WARN"}
    # The default of the other one.
    other["HPCTRAIN_FORK_SERVER"] = {"0": "1", "1": "0"}[forks]
    said = replay(place, "runs/first", **other).stderr
    assert "sets       HPCTRAIN_FORK_SERVER: " in said
    assert "NCCL_ALGO: Ring; here it was Tree" in said
    assert "NCCL_DEBUG: not set; here it was WARN" in said
    assert "PYTHONHASHSEED: 7; here it was 8" in said
    again = place / "runs" / "first-replay-1"
    assert reported(again) == first
    # Also of the replay itself.
    replay(place, str(again), **other)
    assert reported(place / "runs" / "first-replay-2") == first
    said = replay(place, "runs/first", "--keep-environment", **other).stderr
    assert "variable NCCL_ALGO: Ring -> Tree" in said
    kept = reported(place / "runs" / "first-replay-3")
    assert [each["loss"] for each in kept] == [each["loss"] for each in first]
    assert {each["algo"] for each in kept} == {"Tree"}


@pytest.mark.mpi
def test_a_run_that_resumes_keeps_its_seed_and_one_that_begins_anew_does_not(place: Path) -> None:
    environ = {"HPCTRAIN_LAUNCHER": "local"}
    run = place / "runs" / "run"

    def seed() -> int:
        return int(json.loads((run / "plan.json").read_bytes())["seed"])

    run_python("train.py", "run", cwd=place, environ=environ)
    first, before = reported(run), seed()
    status = json.loads((run / "status.json").read_bytes())
    (run / "status.json").write_text(json.dumps({**status, "state": "failed"}))
    run_python("train.py", "run", cwd=place, environ=environ)
    assert seed() == before
    # Another attempt: it is not the beginning that it repeats.
    again = reported(run)[len(first) :]
    assert {each["loss"] for each in again}.isdisjoint(each["loss"] for each in first)
    run_python("train.py", "run", cwd=place, environ={**environ, "HPCTRAIN_EXISTING": "restart"})
    assert seed() != before


@pytest.mark.mpi
def test_a_run_without_the_records_is_replayed(place: Path) -> None:
    environ = {"HPCTRAIN_LAUNCHER": "local", "NCCL_ALGO": "Ring"}
    run_python("train.py", "run", cwd=place, environ=environ)
    run = place / "runs" / "run"
    plan = json.loads((run / "plan.json").read_bytes())
    for name in ("environment", "seed"):
        del plan[name]
    (run / "plan.json").write_text(json.dumps(plan))
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from hpctrain.plan.spec import RunSpec\n"
        "path = Path(sys.argv[1]); spec = RunSpec.from_bytes(path.read_bytes())\n"
        "object.__delattr__(spec.settings, 'seed')\npath.write_bytes(spec.to_bytes())\n"
    )
    run_python("-c", code, run / "spec.pkl")
    said = replay(place, "runs/run", NCCL_ALGO="Tree", HPCTRAIN_LAUNCHER="local").stderr
    assert "sets" not in said
    shown = " ".join(said.split())
    assert "unknown variables of the shell, files that" in shown
    assert "and random numbers without a seed" in shown
    new = place / "runs" / "run-replay-1"
    assert {each["algo"] for each in reported(new)} == {"Tree"}
    # From now on there is one.
    assert isinstance(json.loads((new / "plan.json").read_bytes())["seed"], int)
    shown = run_python(
        "-m", "hpctrain.cli", "diff", "run", "run-replay-1", "--storage", "runs", cwd=place
    )
    assert "variable" not in shown.stdout


def digits(name: str) -> list[str]:
    return [str(DIGITS), "--epochs=2", "--workers=2", "--storage=runs", f"--name={name}"]


@pytest.mark.mpi
def test_the_digits_have_the_same_losses_again_on_a_laptop(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    environ = {"HPCTRAIN_LAUNCHER": "local", "OMP_NUM_THREADS": "2"}
    run_python(*digits("run"), cwd=tmp_path, environ=environ)
    replay(tmp_path, "runs/run", HPCTRAIN_LAUNCHER="local", OMP_NUM_THREADS="1")
    assert reported(tmp_path / "runs" / "run-replay-1") == reported(tmp_path / "runs" / "run")


@pytest.mark.slurm
def test_jobs_have_the_same_losses_again(place: Path, virtual_slurm: VirtualCluster) -> None:
    pytest.importorskip("sklearn")
    environ = dict(virtual_slurm.environ)
    run_python("train.py", "unseeded", cwd=place, environ={**environ, "NCCL_ALGO": "Ring"})
    run_python(*digits("digits"), cwd=place, environ=environ)
    (place / "net.py").write_text("raise SystemExit('edited')\n")
    for name in ("unseeded", "digits"):
        run, again = place / "runs" / name, place / "runs" / f"{name}-replay-1"
        replay(place, f"runs/{name}", **environ, NCCL_ALGO="Tree")
        result = wait_until_final(again, timeout_s=120)
        assert result.error is None
        assert Result.from_path(again).status.launcher == "slurm"
        assert reported(again) == reported(run)
    assert {each["algo"] for each in reported(place / "runs" / "unseeded-replay-1")} == {"Ring"}


PROJECT = """
from pathlib import Path

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


def train():
    import model

    text = Path(model.__file__).with_name("model.yaml").read_text()
    hpctrain.report({"depth": int(text.split(":")[1]), "factor": model.FACTOR})


if __name__ == "__main__":
    import sys

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=sys.argv[1], storage_path="runs", verbose=0, launcher="local"),
    ).fit()
    print(*sorted(path.name for path in Path(result.path).glob("code.*")))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in a repository, with a module, a configuration and changes."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    (tmp_path / "train.py").write_text(PROJECT)
    (tmp_path / "model.py").write_text("FACTOR = 1\n")
    (tmp_path / "model.yaml").write_text("depth: 3\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


def git(place: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *words]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.mpi
def test_the_code_of_a_run_is_beside_it_and_can_be_made_again(project: Path) -> None:
    (project / "model.py").write_text("FACTOR = 2\n")
    (project / "notes.txt").write_text("not known to git\n")
    # It is there as soon as fit() is over.
    assert run_python("train.py", "run", cwd=project).stdout == "code.json code.patch\n"
    run = project / "runs" / "run"
    code = json.loads((run / "code.json").read_bytes())
    commit = git(project, "rev-parse", "HEAD").strip()
    assert (code["commit"], code["branch"], code["dirty"]) == (commit, "main", True)
    assert code["top"] == str(project)
    assert set(code["files"]) == {"model.py", "notes.txt"}
    assert code["left_out"] == []
    assert code["error"] is None
    assert json.loads((run / "plan.json").read_bytes())["git"] == f"{commit}-dirty"
    # It may hold what others are not to see.
    assert (run / "code.patch").stat().st_mode & 0o777 == 0o600
    clone = project.parent / f"{project.name}-clone"
    git(project, "clone", "--quiet", ".", str(clone))
    git(clone, "checkout", "--quiet", commit)
    git(clone, "apply", str(run / "code.patch"))
    for name in ("train.py", "model.py", "model.yaml", "notes.txt"):
        assert (clone / name).read_bytes() == (project / name).read_bytes()
    shutil.rmtree(clone)


@pytest.mark.mpi
def test_a_file_that_the_function_reads_is_not_kept_and_a_replay_says_that_it_changed(
    project: Path,
) -> None:
    run_python("train.py", "run", cwd=project)
    runs = project / "runs"
    unchanged = replay(project, "runs/run", "--dry-run").stdout
    assert "other files of the tree" not in unchanged
    (project / "model.py").write_text("FACTOR = 2\n")
    (project / "train.py").write_text("raise SystemExit('edited')\n")
    (project / "model.yaml").write_text("depth: 4\n")
    git(project, "commit", "--quiet", "--all", "--message=edited")
    said = replay(project, "runs/run").stderr
    assert "other files of the tree: as they were -> changed since: model.yaml\n" in said
    assert reported(runs / "run-replay-1") == [{"depth": 4, "factor": 1}]
    # The replay runs the code of the run that it repeats, and has its record.
    assert (runs / "run-replay-1" / "code.json").read_bytes() == (
        runs / "run" / "code.json"
    ).read_bytes()


@pytest.mark.mpi
def test_two_runs_differ_by_branch_seed_variables_and_uncommitted_files(project: Path) -> None:
    run_python("train.py", "a", cwd=project, environ={"NCCL_ALGO": "Ring"})
    (project / "model.yaml").write_text("depth: 5\n")
    git(project, "checkout", "--quiet", "-b", "deeper")
    run_python("train.py", "b", cwd=project, environ={"NCCL_ALGO": "Tree"})
    diff = ("-m", "hpctrain.cli", "diff", "a", "b", "--storage", "runs")
    said = run_python(*diff, cwd=project).stdout.splitlines()
    assert "variable NCCL_ALGO: Ring -> Tree" in said
    assert "git branch: main -> deeper" in said
    assert [line for line in said if line.startswith("uncommitted model.yaml: - -> ")]
    assert [line for line in said if line.startswith("seed: ")]
    assert [line for line in said if line.startswith("git: ") and line.endswith("-dirty")]
    code = project / "runs" / "b" / "code.json"
    why = "git diff did not answer within 5 s (timeout git_patch)"
    code.write_text(json.dumps({**json.loads(code.read_bytes()), "files": {}, "error": why}))
    (line,) = (
        line
        for line in run_python(*diff, cwd=project).stdout.splitlines()
        if line.startswith("uncommitted")
    )
    assert line == f"uncommitted changes: - -> not known: {why}"


SWEEP = """
from pathlib import Path

import hpctrain
from hpctrain import RunConfig, tune


def train(config):
    import model

    hpctrain.report({"loss": config["rate"] * model.FACTOR})


if __name__ == "__main__":
    tune.Tuner(
        train,
        param_space={"rate": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="sweep", storage_path="runs", verbose=0),
    ).fit()
"""


@pytest.mark.mpi
def test_a_sweep_keeps_the_code_of_its_trials_once(project: Path) -> None:
    (project / "sweep.py").write_text(SWEEP)
    run_python("sweep.py", cwd=project, environ={"HPCTRAIN_LAUNCHER": "local"})
    sweep = project / "runs" / "sweep"
    assert set(json.loads((sweep / "code.json").read_bytes())["files"]) == {"sweep.py"}
    assert [path.parent for path in (project / "runs").rglob("code.*")] == [sweep, sweep]
    plans = [json.loads(path.read_bytes()) for path in sweep.glob("trial_*/plan.json")]
    assert len({plan["seed"] for plan in plans}) == 2
    assert len({plan["git"] for plan in plans}) == 1
    (project / "model.py").write_text("FACTOR = 9\n")
    first = sorted(sweep.glob("trial_*"))[0]
    replay(project, str(first), "--storage-path", "again")
    (again,) = (project / "again").iterdir()
    assert [each["loss"] for each in reported(again)] == [each["loss"] for each in reported(first)]
    assert (again / "code.json").read_bytes() == (sweep / "code.json").read_bytes()


@pytest.mark.mpi
def test_without_git_a_snapshot_or_a_tree_nothing_is_kept(project: Path) -> None:
    script = PROJECT.replace("verbose=0", "verbose=0, snapshot=False")
    (project / "train.py").write_text(script)
    run_python("train.py", "unkept", cwd=project)
    run = project / "runs" / "unkept"
    assert not (run / "code.json").exists()
    assert json.loads((run / "plan.json").read_bytes())["git"].endswith("-dirty")
    (project / "train.py").write_text(PROJECT)
    shutil.rmtree(project / ".git")
    run_python("train.py", "bare", cwd=project)
    assert not (project / "runs" / "bare" / "code.json").exists()


@pytest.mark.slurm
def test_the_code_of_a_job_is_kept_when_submit_returns(
    project: Path, virtual_slurm: VirtualCluster
) -> None:
    script = (project / "train.py").read_text().replace(', launcher="local"', "")
    (project / "train.py").write_text(script)
    submit = ("-m", "hpctrain.cli", "submit", "--time", "5", "train.py", "run")
    job = run_python(*submit, cwd=project, environ=dict(virtual_slurm.environ)).stdout.strip()
    run = project / "runs" / "run"
    code = json.loads((run / "code.json").read_bytes())
    assert (list(code["files"]), code["error"]) == (["train.py"], None)
    assert b"launcher" in (run / "code.patch").read_bytes()
    before = (run / "code.json").read_bytes()
    result = wait_until_final(run, timeout_s=120)
    assert (result.error, Result.from_path(run).status.job_id) == (None, job)
    # Jobs do not look at the tree.
    assert (run / "code.json").read_bytes() == before
