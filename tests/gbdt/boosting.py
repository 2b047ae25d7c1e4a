"""What the tests of both tree trainers share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig

Fit = Callable[..., Result]


def held_out(table: Any) -> dict[str, Any]:
    """Return the datasets of a table, of which every fifth row is held out."""
    table = table.reset_index(drop=True)
    table.columns = [name.replace(" ", "_") for name in table.columns]
    is_held_out = table.index % 5 == 0
    return {
        "train": table[~is_held_out].reset_index(drop=True),
        "valid": table[is_held_out].reset_index(drop=True),
    }


def with_random_labels(frames: dict[str, Any]) -> dict[str, Any]:
    """Return the datasets with labels that mean nothing."""
    random = np.random.default_rng(3)
    return {
        name: frame.assign(target=random.integers(0, 2, len(frame)))
        for name, frame in frames.items()
    }


def restarts_once(storage: Path) -> RunConfig:
    """Return how a run on this machine is looked after of which a rank dies."""
    return RunConfig(
        storage_path=storage,
        name="killed",
        verbose=0,
        launcher="local",
        failure_config=FailureConfig(max_failures=1),
        checkpoint_config=CheckpointConfig(checkpoint_frequency=10),
    )


def make_fit(
    trainer: Any, params: dict[str, Any], frames: dict[str, Any], folders: pytest.TempPathFactory
) -> Fit:
    """Return a function that trains 30 rounds, each time in a new folder."""

    def fit(
        *,
        num_workers: int = 2,
        run: RunConfig | None = None,
        checkpoints: CheckpointConfig | None = None,
        **changes: Any,
    ) -> Result:
        launcher: Any = "local" if num_workers else "auto"
        arguments = {
            "datasets": frames,
            "label_column": "target",
            "params": params,
            "num_boost_round": 30,
            "scaling_config": ScalingConfig(num_workers=num_workers),
            "run_config": run
            or RunConfig(
                storage_path=folders.mktemp("runs"),
                name="run",
                verbose=0,
                launcher=launcher,
                checkpoint_config=checkpoints or CheckpointConfig(),
            ),
        }
        return trainer(**{**arguments, **changes}).fit()

    return fit


def hangs(storage: Path) -> RunConfig:
    """Return how a run on this machine is looked after of which a rank hangs."""
    return RunConfig(
        storage_path=storage,
        name="hangs",
        verbose=0,
        launcher="local",
        failure_config=FailureConfig(hang_timeout_s=3),
    )
