"""How tests start a run on this machine, and read what came of it. Ranks cannot import it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpctrain import DataParallelTrainer, Result, RunConfig, ScalingConfig

_OF_RUN = {field.name for field in fields(RunConfig)}
_OF_SCALING = {field.name for field in fields(ScalingConfig)}


def make_trainer(
    train: Any,
    storage: Path,
    *,
    num_workers: int = 2,
    name: str | None = "run",
    trainer: type[DataParallelTrainer] = DataParallelTrainer,
    **options: Any,
) -> DataParallelTrainer:
    """Return a quiet trainer of ranks on this machine, or in this interpreter if there are none.

    What else is given goes to its RunConfig or its ScalingConfig, if that has a field of this name,
    or to the trainer.
    """
    of_run = {field: options.pop(field) for field in _OF_RUN & options.keys()}
    of_scaling = {field: options.pop(field) for field in _OF_SCALING & options.keys()}
    launcher: Any = "local" if num_workers else "auto"
    of_run = {"verbose": 0, "launcher": launcher, **of_run}
    return trainer(
        train,
        scaling_config=ScalingConfig(num_workers=num_workers, **of_scaling),
        run_config=RunConfig(storage_path=storage, name=name, **of_run),
        **options,
    )


def fit(train: Any, storage: Path, **options: Any) -> Result:
    """Run a trainer of `make_trainer`."""
    return make_trainer(train, storage, **options).fit()


def reported(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of all reports in a run directory, also those that were made again."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]
