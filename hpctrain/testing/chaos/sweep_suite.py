"""The sweeps of the chaos suite: one model, four schedulers, and what is checked of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpctrain.testing.chaos.sweep_decisions import wrong_decisions, wrong_lineages
from hpctrain.testing.chaos.sweep_experiment import SweepExperiment
from hpctrain.testing.chaos.sweep_kinds import SWEEP_KINDS
from hpctrain.testing.chaos.trial import Script
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

SCHEDULERS = ("fifo", "asha", "pbt", "hyperband")
SWEEP = "sweep"
# Seconds of a step of trials that are stopped before their end: an executor takes up to two.
_PAUSE_S = "0.4"
# A clone may be the same file as its donor, which is damaged with it.
_ONLY_WITHOUT_CLONES = ("bit-flip", "truncate")


def begin_suite(
    folder: Path,
    *,
    model: Path,
    scheduler: str,
    cluster: VirtualCluster | None = None,
    num_trials: int = 6,
    args: Sequence[str] = (),
    timeout_s: float = 240.0,
) -> SweepExperiment:
    """Run a sweep of the model undisturbed.

    Not collective.

    Parameters
    ----------
    folder
        Folder for the sweeps. It is made if needed.
    model
        The script ``tests/chaos/sweep_model.py``.
    scheduler
        One of `SCHEDULERS`.
    cluster
        Where it is started, in an allocation; None is this machine.
    num_trials
        Of the sweep.
    args
        More arguments of the script.
    timeout_s
        How long one sweep may take.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pause = "0.05" if scheduler == "fifo" else _PAUSE_S
    options = ("--scheduler", scheduler, "--trials", str(num_trials), "--pause", pause, *args)

    def check(place: Path) -> list[str]:
        root, notes = place / "storage" / SWEEP, place / "notes.jsonl"
        if scheduler == "pbt":
            return list(wrong_lineages(root, _advance))
        makers = {"fifo": FIFOScheduler, "asha": _make_asha}
        maker = makers.get(scheduler)
        return [] if maker is None else list(wrong_decisions(notes, root, maker))

    return SweepExperiment.begin(
        folder,
        script=Script(path=model, args=options, cwd=folder, sweep=SWEEP),
        num_trials=num_trials,
        cluster=cluster,
        is_repeatable=scheduler == "fifo",
        metric="" if scheduler == "pbt" else "loss",
        check=check,
        timeout_s=timeout_s,
    )


def kinds_for(scheduler: str, cluster: VirtualCluster | None) -> list[str]:
    """Return the kinds of faults that a sweep of the suite can have. Not collective."""
    return [
        name
        for name, kind in SWEEP_KINDS.items()
        if (kind.needs == "nothing" or cluster is not None)
        and (scheduler != "pbt" or name not in _ONLY_WITHOUT_CLONES)
    ]


def _make_asha() -> TrialScheduler:
    return ASHAScheduler(metric="loss", mode="min", max_t=9, grace_period=2, reduction_factor=2)


def _advance(w: float, lr: float) -> float:
    return w - lr * 2 * (w - 3)
