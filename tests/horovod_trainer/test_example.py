"""The example on two ranks of this machine: killed, resumed, and its checkpoint predicts."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig, Result, RunConfig, ScalingConfig
from hpctrain.data import from_numpy
from hpctrain.horovod import HorovodTrainer
from hpctrain.predict import BatchPredictor
from hpctrain.torch import TorchPredictor

pytest.importorskip("horovod", reason="hpctrain install horovod")
pytestmark = pytest.mark.mpi

EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod_digits.py"
EPOCHS = 3
TIMEOUT_S = 150


def run_example(storage: Path, name: str, *options: str) -> Result:
    argv = [sys.executable, str(EXAMPLE), "--workers=2", f"--epochs={EPOCHS}", *options]
    done = subprocess.run(
        [*argv, f"--storage={storage}", f"--name={name}"],
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Result.from_path(storage / name)


def losses(result: Result) -> list[tuple[int, float]]:
    return [(metrics["epoch"], metrics["loss"]) for metrics in result.metrics_history]


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_example(tmp_path_factory.mktemp("runs"), "whole")


def test_the_checkpoint_predicts_on_this_process_and_on_ranks(
    trained: Result, example: dict[str, Any], tmp_path: Path
) -> None:
    pixels, labels = (tensor.numpy() for tensor in example["load_digits"]()[2:])
    predictor = TorchPredictor.from_checkpoint(trained.checkpoint, example["make_network"])
    scores = predictor.predict(pixels)["predictions"]
    accuracy = (scores.argmax(1) == labels).mean()
    assert accuracy == pytest.approx(trained.metrics["accuracy"])
    assert accuracy > 0.8
    scored = BatchPredictor.from_checkpoint(
        trained.checkpoint, TorchPredictor, model=example["make_network"]
    ).predict(
        from_numpy({"pixels": pixels}),
        feature_columns=["pixels"],
        output=tmp_path / "scores.h5",
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="scores", launcher="local", verbose=0),
    )
    assert (scored.to_numpy()["predictions"].argmax(1) == scores.argmax(1)).all()


def test_a_killed_rank_is_started_again_and_goes_on_at_the_right_step(
    trained: Result, example: dict[str, Any], tmp_path: Path
) -> None:
    train_digits, save = example["train_digits"], example["save"]

    def save_and_die_once(model: Any, optimizer: Any, epoch: int, metrics: Any) -> None:
        import os
        import signal

        import hpctrain

        world = hpctrain.get_context().world
        if (world.attempt, world.world_rank, epoch) == (1, 1, 2):
            hpctrain.get_all_reported_checkpoints(timeout_s=60)
            os.kill(os.getpid(), signal.SIGKILL)
        save(model, optimizer, epoch, metrics)

    train_digits.__globals__["save"] = save_and_die_once
    try:
        result = HorovodTrainer(
            train_digits,
            train_loop_config={"epochs": EPOCHS, "lr": 0.1, "batch_size": 64},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=tmp_path,
                name="killed",
                launcher="local",
                verbose=0,
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
    finally:
        train_digits.__globals__["save"] = save
    assert losses(result) == losses(trained)
    assert len(result.attempts) == 2


def test_the_elastic_example_has_the_losses_of_the_other_one(
    trained: Result, tmp_path: Path
) -> None:
    # Over Gloo and not MPI; two numbers have the same sum in either order.
    assert losses(run_example(tmp_path, "elastic", "--max-replacements=1")) == losses(trained)
