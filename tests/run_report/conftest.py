"""Real runs to report on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig
from hpctrain.rundir.paths import RunPaths
from tests.runs import fit

ODD = "</script><script>alert(1)</script>"


def train(config: dict[str, Any]) -> None:
    import math
    import os
    from pathlib import Path

    import hpctrain

    checkpoint, begin = hpctrain.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            begin = int((Path(directory) / "step").read_text())
    marker = Path(config["marker"])
    for step in range(begin + 1, config["steps"] + 1):
        if step == config["fail_at"] and not marker.exists():
            marker.touch()
            os._exit(9)
        metrics = {
            "loss": math.exp(-step / 9) * config["rate"],
            "val": {"größe": step * 1.5},
            "</script><script>alert(1)</script>": 2.0**step,
            "quote\"d & 'odd'": math.nan if step % 4 == 0 else step % 3,
            "never finite": math.inf,
            "too large to draw": 1e305 * step,
            "note": "<b onclick='x'>bold</b>\x1b[2J",
        }
        if step % 5:
            hpctrain.report(metrics)
            continue
        with hpctrain.checkpoint_dir() as directory:
            (Path(directory) / "step").write_text(str(step))
            hpctrain.report(metrics, hpctrain.Checkpoint(directory))


def make_run(storage: Path, name: str, *, fail_at: int = 0, rate: float = 1.0) -> RunPaths:
    """Run 20 steps with a checkpoint every 5, and a rank that dies at one of them."""
    config = {"marker": f"{storage}/{name}.failed", "steps": 20, "fail_at": fail_at, "rate": rate}
    result = fit(
        train,
        storage,
        num_workers=1,
        name=name,
        train_loop_config=config,
        failure_config=FailureConfig(max_failures=1),
    )
    return RunPaths(Path(result.path))


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def restarted(storage: Path) -> RunPaths:
    """A run that failed at step 13, and resumed from the checkpoint of step 10."""
    return make_run(storage, "restarted", fail_at=13)


@pytest.fixture(scope="session")
def smooth(storage: Path) -> RunPaths:
    """A run without a failure, and with another rate."""
    return make_run(storage, "smooth", rate=2.0)
