"""The code of the trials of a sweep that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunConfig, tune
from hpctrain.launch.code_look import await_records
from hpctrain.tune import tuner
from hpctrain.tune.ledger import SweepLedger, SweepPaths


def train(config: dict[str, Any]) -> None:
    """Never runs."""


def test_a_trial_that_had_begun_keeps_the_code_that_it_began_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    script = tmp_path / "sweep.py"
    script.write_text("first\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True, timeout=30)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    # What a sweep does between its beginning and its end is not asked here.
    monkeypatch.setattr(tuner.Sweep, "run", lambda self: None)
    run_config = RunConfig(name="sweep", storage_path=str(tmp_path / "runs"), verbose=0)
    tune.Tuner(
        train,
        param_space={"rate": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=run_config,
    ).fit()
    await_records()
    root = tmp_path / "runs" / "sweep"
    before = (root / "code.json").read_bytes()
    paths = SweepPaths(root=root)
    for trial in ("trial_00000", "trial_00001"):
        SweepLedger(paths=paths).append("trial-added", trial=trial, config={"rate": 1})
    begun = paths.run("trial_00000")
    begun.mkdir()
    (begun / "plan.json").write_text("{}")
    script.write_text("second\n")
    tune.Tuner.restore(root, train).fit()
    await_records()
    assert (begun / "code.json").read_bytes() == before
    assert b"+first" in (begun / "code.patch").read_bytes()
    assert b"+second" in (root / "code.patch").read_bytes()
    assert set(json.loads((root / "code.json").read_bytes())["files"]) == {"sweep.py"}
    assert not paths.run("trial_00001").exists()
