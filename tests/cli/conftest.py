from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
TIMEOUT_S = 120

SCRIPT = """
import argparse
import time

import hpctrain
from beside import DOUBLE
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def double(value):
    return value * DOUBLE


def train(config):
    rank = hpctrain.get_context().get_world_rank()
    print(f"rank {rank} is here", flush=True)
    for step in range(config["steps"]):
        if step == config["fail_at"] and rank == 1:
            raise ValueError("the loss is gone")
        print(f"step {step}", flush=True)
        hpctrain.report({"loss": 1 / (step + 1), "double": double(step)})
        if hpctrain.should_stop():
            return
        time.sleep(config["pause"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="tiny")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--sbatch", action="append", default=[])
    args = parser.parse_args()
    print("the script begins")
    result = DataParallelTrainer(
        train,
        train_loop_config={"steps": args.steps, "fail_at": args.fail_at, "pause": args.pause},
        scaling_config=ScalingConfig(
            num_workers=args.workers, slurm=SlurmConfig(time="9", sbatch_args=args.sbatch)
        ),
        run_config=RunConfig(name=args.name),
    ).fit()
    print("the script has a result:", result.metrics["double"])
"""


@dataclass
class Workplace:
    """A directory with a script of a user, and ``hpctrain`` to run there."""

    path: Path
    prefix: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    failed: subprocess.CompletedProcess[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if "HPCTRAIN" not in name},
            "PYTHONPATH": str(REPOSITORY),
            "COLUMNS": "100",
            "HPCTRAIN_LAUNCHER": "local" if not self.prefix else "",
        }

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run([*HPCTRAIN, *args])

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *argv],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.prefix, *HPCTRAIN, *args],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def wait_until(self, condition: Callable[[], bool], what: str, *, started: bool = True) -> None:
        """Poll; `started` says whether what was started has to go on meanwhile."""

        def holds() -> bool:
            ended = [p.args for p in self.started if started and p.poll() is not None]
            held = condition()
            assert held or not ended, f"{what}: not before the end of what was started: {ended}"
            return held

        wait_until(holds, what, timeout_s=TIMEOUT_S)

    def start_run(self, *args: str, name: str = "tiny") -> subprocess.Popen[str]:
        """Start an endless run and wait for its first reports."""
        run = self.start(
            "run", "train.py", "--steps", "100000", "--pause", "0.02", "--name", name, *args
        )
        metrics = self.run_dir(name) / "metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first report")
        return run

    def status(self, name: str = "tiny") -> dict[str, Any]:
        answer = self("status", name, "--json")
        assert answer.returncode == 0, answer.stderr
        content: dict[str, Any] = json.loads(answer.stdout)
        return content

    def run_dir(self, name: str = "tiny") -> Path:
        return self.path / "hpctrain_runs" / name


def make_workplace(path: Path, prefix: list[str] | None = None) -> Workplace:
    (path / "train.py").write_text(SCRIPT)
    (path / "beside.py").write_text("DOUBLE = 2\n")
    return Workplace(path, prefix or [])


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing of the terminal that runs the tests change what is printed."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    place = make_workplace(tmp_path)
    yield place
    for process in place.started:
        process.kill()
        process.communicate()


@pytest.fixture
def login(tmp_path: Path, virtual_slurm: Any) -> Iterator[Workplace]:
    """A workplace on the login node of a cluster."""
    place = make_workplace(tmp_path, virtual_slurm.login_command([], cwd=tmp_path))
    yield place
    virtual_slurm.run_on("head", ["scancel", "--name=tiny"])
    for process in place.started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A workplace with a finished and a failed run."""
    place = make_workplace(tmp_path_factory.mktemp("done"))
    finished = place("run", "train.py", "--name", "fine", "--steps", "3")
    assert finished.returncode == 0, finished.stderr
    place.failed = place("run", "train.py", "--name", "bad", "--fail-at", "1")
    assert place.failed.returncode == 4, place.failed.stderr
    return place
