"""Whole sweeps whose tuner, executors, ranks and files are struck while they run.

``benchmarks/chaos_sweeps.py`` draws many more.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpctrain.testing.chaos.sweep_kinds import SWEEP_KINDS
from hpctrain.testing.chaos.sweep_suite import begin_suite
from hpctrain.testing.slurm import VirtualCluster

MODEL = Path(__file__).parents[1] / "chaos" / "sweep_model.py"
SEED = 7

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("scheduler", "kinds"),
    [
        ("fifo", ("kill-executor", "kill-tuner-writing", "torn-write")),
        ("asha", ("kill-tuner", "kill-rank")),
        ("pbt", ("kill-all", "kill-executor")),
        ("hyperband", ("interrupt-tuner", "kill-commit")),
    ],
    ids=["fifo", "asha", "pbt", "hyperband"],
)
def test_a_sweep_survives(scheduler: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    experiment = begin_suite(tmp_path, model=MODEL, scheduler=scheduler, num_trials=4)
    chance = random.Random(f"{SEED} {kinds}")
    trace = experiment.undisturbed.trace
    verdict = experiment.disturb([SWEEP_KINDS[kind].draw(trace, chance) for kind in kinds])
    assert verdict.passed, verdict.explain()
    assert any(verdict.result.came_about), verdict.explain()


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.parametrize(
    ("scheduler", "kinds"),
    [
        ("fifo", ("kill-tuner", "power-off")),
        ("asha", ("kill-all",)),
        ("pbt", ("kill-tuner",)),
    ],
    ids=["fifo", "asha", "pbt"],
)
def test_a_sweep_in_an_allocation_survives(
    virtual_slurm: VirtualCluster, scheduler: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have no power of their own")
    experiment = begin_suite(
        tmp_path, model=MODEL, scheduler=scheduler, num_trials=4, cluster=virtual_slurm
    )
    chance = random.Random(f"{SEED} {kinds}")
    trace = experiment.undisturbed.trace
    verdict = experiment.disturb([SWEEP_KINDS[kind].draw(trace, chance) for kind in kinds])
    assert verdict.passed, verdict.explain()
    assert any(verdict.result.came_about), verdict.explain()
