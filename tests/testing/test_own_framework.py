"""The example of a backend of one's own: short, within the contract, and of use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import FailureConfig, Result
from hpctrain.testing import BackendContract
from hpctrain.testing.slurm import VirtualCluster
from tests import runs

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 30


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.mpi
class TestAveragingBackend(BackendContract):
    @property
    def backend_config(self) -> Any:
        from averaging import AveragingConfig

        return AveragingConfig()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import numpy as np
        from averaging import average

        import hpctrain

        return float(average([np.array(value)])[0]) * hpctrain.get_context().get_world_size()


def test_the_backend_takes_less_than_60_lines() -> None:
    assert len((EXAMPLES / "averaging.py").read_text().splitlines()) < 60


def fit(tmp_path: Path, *, train: Any = None, workers: int, max_failures: int = 0) -> Result:
    from averaging import AveragingConfig
    from own_framework import train_digits

    return runs.fit(
        train or train_digits,
        tmp_path,
        num_workers=workers,
        name=f"on-{workers}",
        train_loop_config={"steps": STEPS, "lr": 0.5},
        backend_config=AveragingConfig(),
        failure_config=FailureConfig(max_failures=max_failures),
    )


@pytest.mark.mpi
def test_two_ranks_of_which_one_is_killed_learn_what_one_learns(tmp_path: Path) -> None:
    def train_and_be_killed(config: dict[str, Any]) -> Any:
        import averaging
        from own_framework import train_digits

        import hpctrain

        world, average = hpctrain.get_context().world, averaging.average
        calls: list[int] = []

        def average_and_be_killed(arrays: Any) -> Any:
            calls.append(1)
            if (len(calls), world.attempt, world.world_rank) == (15, 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            return average(arrays)

        averaging.average = average_and_be_killed
        return train_digits(config), world.attempt, len(calls)

    two = fit(tmp_path, train=train_and_be_killed, workers=2, max_failures=1)
    one = fit(tmp_path, workers=0)
    weights, attempt, steps = two.return_value
    assert (attempt, steps) == (2, STEPS - 10), "it goes on after the checkpoint of step 9"
    assert [metrics["step"] for metrics in two.metrics_history] == list(range(STEPS))
    # float64, and sums over rows in another order.
    assert np.allclose(weights, one.return_value, rtol=1e-9, atol=1e-12)


@pytest.mark.slurm
def test_the_example_has_the_same_losses_here_and_on_two_nodes(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    homes = {
        "here": {**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        "there": {**os.environ, **virtual_slurm.environ, "HPCTRAIN_SLURM": '{"nodes": 2}'},
    }
    for name, environ in homes.items():
        script = [sys.executable, str(EXAMPLES / "own_framework.py"), "--steps=20"]
        done = subprocess.run(
            [*script, f"--storage={tmp_path}", f"--name={name}"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    here, there = (Result.from_path(tmp_path / name) for name in homes)
    assert here.metrics_history == there.metrics_history
    assert len(there.nodes) == 2
    assert here.metrics["loss"] < here.metrics_history[0]["loss"] / 2
