"""The example: killed, it ends with the losses and the state of a run that nobody disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig, Result
from hpctrain.rundir.manifest import read_manifest
from hpctrain.torch import TorchTrainer
from tests.runs import fit

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = {"epochs": 1, "lr": 3e-3, "batch_size": 64, "seed": 7, "steps_between": 3}


@pytest.fixture(autouse=True)
def _beside_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def _train_and_be_killed() -> Callable[[dict[str, Any]], None]:
    def train(config: dict[str, Any]) -> None:
        import os
        import signal

        import resumable_digits

        import hpctrain

        world, report = hpctrain.get_context().world, hpctrain.report

        def report_and_be_killed(metrics: Any) -> None:
            report(metrics)
            if (metrics["step"], world.attempt, world.world_rank) == (config["dies_at"], 1, 1):
                # So that there is something to resume from.
                hpctrain.get_all_reported_checkpoints()
                os.kill(os.getpid(), signal.SIGKILL)

        hpctrain.report = report_and_be_killed
        resumable_digits.train_digits(config)

    return train


def _run(directory: Path, name: str, strategy: str, *, dies_at: int = 0) -> Result:
    return fit(
        _train_and_be_killed(),
        directory,
        trainer=TorchTrainer,
        train_loop_config={**CONFIG, "strategy": strategy, "dies_at": dies_at},
        name=name,
        failure_config=FailureConfig(max_failures=1),
    )


def _state(result: Result) -> dict[str, tuple[int, str]]:
    """Return size and digest of the files that hold the last state."""
    assert result.checkpoint is not None
    files = read_manifest(result.checkpoint.path).files
    # What torch.save writes of equal values can differ.
    return {file.path: (file.size, file.digest) for file in files if file.path[-3:] != ".pt"}


@pytest.mark.mpi
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_a_killed_rank_changes_neither_losses_nor_a_bit_of_the_state(
    tmp_path: Path, strategy: str
) -> None:
    whole = _run(tmp_path, "whole", strategy)
    killed = _run(tmp_path, "killed", strategy, dies_at=8)
    assert [len(result.attempts) for result in (whole, killed)] == [1, 2]
    events = map(json.loads, (killed.path / "ledger.jsonl").read_text().splitlines())
    first = [event["first_report"] for event in events if event["event"] == "attempt-started"]
    assert first == [0, 6]
    assert killed.metrics_history == whole.metrics_history
    assert whole.metrics_history[-1]["loss"] < whole.metrics_history[0]["loss"]
    assert _state(killed) == _state(whole)
    assert sorted(_state(whole)) == [
        "state-00001-of-00002.safetensors",
        "state-00002-of-00002.safetensors",
        "state.json",
    ]


@pytest.mark.mpi
def test_steps_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    result = _run_steps(tmp_path, "ASYNC")
    assert sum(under_way for _, under_way in result.return_value) >= 3
    # A report that waits returns when its checkpoint is committed.
    waited = _run_steps(tmp_path, "SYNC")
    assert not any(under_way for _, under_way in waited.return_value)
    assert _state(result) == _state(waited)


def _run_steps(directory: Path, mode: str) -> Result:
    import steps_go_on

    sizes = {"steps_between": 5, "width": 1024, "layers": 8, "batch_size": 2}
    return fit(
        steps_go_on.train,
        directory,
        trainer=TorchTrainer,
        train_loop_config={"mode": mode, "steps": 16, **sizes},
        num_workers=1,
        name=mode,
    )
