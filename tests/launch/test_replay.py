"""What the job of a replay asks for, where its command changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.launch import replay
from hpctrain.plan.launch_plan import LaunchPlan
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
    plan = replay_with(tmp_path, site, recorded="old@v100", **slurm)
    assert plan.directives == {"job-name": "again", "account": account}


def replay_with(tmp_path: Path, site: Path, *, recorded: str | None, **slurm: Any) -> LaunchPlan:
    """Return the plan of the replay of a job that had this account."""
    request: Any = SimpleNamespace(
        scaling_config=ScalingConfig(slurm=SlurmConfig(site=str(site), **slurm)),
        run_config=RunConfig(name="again", storage_path=str(tmp_path)),
        paths=RunPaths(tmp_path / "again"),
    )
    directives = {"job-name": "run"} | ({} if recorded is None else {"account": recorded})
    stored: Any = SimpleNamespace(
        launch_plan=replace(make_plan("slurm"), directives=directives),
        plan=tmp_path / "run" / "plan.json",
        spec=SimpleNamespace(settings=SETTINGS),
    )
    plan, _ = replay._plan(request, {}, stored, "slurm", slurm)
    return plan


@pytest.mark.parametrize(
    ("recorded", "given", "account"),
    [
        ("old@v100", "abc", "abc@v100"),
        ("old@v100", "abc@cpu", "abc@cpu"),
        ("old", "abc", "abc"),
        (None, "abc", "abc"),
    ],
)
def test_where_the_profile_is_gone_an_account_gets_the_suffix_of_the_recorded_one(
    tmp_path: Path, recorded: str | None, given: str, account: str
) -> None:
    plan = replay_with(tmp_path, tmp_path / "gone.toml", recorded=recorded, account=given)
    assert plan.directives["account"] == account
