"""A replay gives the same losses, to the last bit: with seeds of the script, and of the run."""

from __future__ import annotations

import json
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


@pytest.mark.mpi
def test_two_runs_differ_by_seed_and_variables(place: Path) -> None:
    for name, algo in (("a", "Ring"), ("b", "Tree")):
        environ = {"HPCTRAIN_LAUNCHER": "local", "NCCL_ALGO": algo}
        run_python("train.py", name, cwd=place, environ=environ)
    diff = ("-m", "hpctrain.cli", "diff", "runs/a", "runs/b")
    said = run_python(*diff, cwd=place).stdout.splitlines()
    assert "variable NCCL_ALGO: Ring -> Tree" in said
    assert [line for line in said if line.startswith("seed: ")]
