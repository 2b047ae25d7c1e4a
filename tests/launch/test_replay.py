"""What the job of a replay asks for, where its command changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.launch import replay
from hpctrain.rundir.paths import RunPaths
from tests.plans import SETTINGS, make_plan


@pytest.mark.parametrize(
    ("slurm", "account"),
    [({"account": "abc"}, "abc@v100"), ({"account": "abc@cpu"}, "abc@cpu"), ({}, "old@v100")],
)
def test_an_account_gets_the_suffix_of_the_site(
    tmp_path: Path, slurm: dict[str, str], account: str
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('account_suffix = "@v100"\n')
    request: Any = SimpleNamespace(
        scaling_config=ScalingConfig(slurm=SlurmConfig(site=str(site), **slurm)),
        run_config=RunConfig(name="again", storage_path=str(tmp_path)),
        paths=RunPaths(tmp_path / "again"),
    )
    recorded = replace(make_plan("slurm"), directives={"job-name": "run", "account": "old@v100"})
    stored: Any = SimpleNamespace(
        launch_plan=recorded,
        plan=tmp_path / "run" / "plan.json",
        spec=SimpleNamespace(settings=SETTINGS),
    )
    plan, _ = replay._plan(request, {}, stored, "slurm", slurm)
    assert plan.directives == {"job-name": "again", "account": account}
