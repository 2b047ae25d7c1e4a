"""With which MPI ranks start after a start that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpctrain.execute import mpi_choice
from hpctrain.execute.mpi_choice import MpiChoice
from hpctrain.plan.launch_plan import LaunchPlan
from tests.plans import make_plan


@pytest.fixture(autouse=True)
def _has_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(mpi: str, *, tried: str) -> str:
        return "wheel" if tried == mpi else mpi

    monkeypatch.setattr(mpi_choice, "other_mpi", other)


@pytest.fixture
def plan() -> LaunchPlan:
    return make_plan("allocation")


def chosen_after_a_failure(plan: LaunchPlan, *, container: Any = None) -> str:
    choice = MpiChoice(plan, container=container)
    choice.note_failed_start(in_slot=False)
    return choice.name


def test_another_mpi_is_tried_until_ranks_have_joined(plan: LaunchPlan) -> None:
    choice = MpiChoice(plan, container=None)
    names = [choice.name]
    for _ in range(3):
        choice.note_failed_start(in_slot=False)
        names.append(choice.name)
    assert names == ["auto", "wheel", "auto", "wheel"]
    choice.note_joined()
    assert choice.name == "auto"


def test_a_start_in_the_step_of_a_slot_says_nothing_of_the_mpi_of_the_plan(
    plan: LaunchPlan,
) -> None:
    choice = MpiChoice(plan, container=None)
    choice.note_failed_start(in_slot=True)
    assert choice.name == "auto"


def test_ranks_in_a_container_that_srun_enters_keep_their_mpi(plan: LaunchPlan) -> None:
    for is_entered_by_srun, expected in ((True, "auto"), (False, "wheel")):
        container = Mock(is_entered_by_srun=is_entered_by_srun)
        assert chosen_after_a_failure(plan, container=container) == expected


def test_ranks_that_would_get_the_gpus_of_other_runs_keep_their_mpi(plan: LaunchPlan) -> None:
    for is_slice, gpus, expected in ((True, 1, "auto"), (True, 0, "wheel"), (False, 1, "wheel")):
        placement = replace(plan.placement, gpus_per_task=gpus)
        changed = replace(plan, placement=placement, is_slice=is_slice)
        assert chosen_after_a_failure(changed) == expected


def test_a_wrong_pmi_is_explained_from_what_srun_and_ranks_have_printed(
    plan: LaunchPlan, tmp_path: Path
) -> None:
    log = tmp_path / "launcher.out"
    choice = MpiChoice(replace(plan, mpi="pmix"), container=Mock(library="mpich"))
    assert choice.explain_wrong_pmi(log) == "", "there is no such file"
    log.write_text("Runtime environment uses unsupported PMI version PMIx.\n")
    assert "SlurmConfig(mpi='pmi2')" in choice.explain_wrong_pmi(log)
