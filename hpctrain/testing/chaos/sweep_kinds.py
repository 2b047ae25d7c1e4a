"""The kinds of faults of sweeps: what strikes runs strikes trials, and the tuner besides."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpctrain.testing.chaos import acts
from hpctrain.testing.chaos.fault import Entry, Point
from hpctrain.testing.chaos.kinds import KINDS, Kind, reports
from hpctrain.testing.chaos.processes import TrialProcess
from hpctrain.testing.chaos.scene import Act, Scene
from hpctrain.testing.slurm.processes import wait_until

MOST_AT_ONCE = 4
"""Trials that run at the same time, at most: what stops the tuner costs each an attempt."""
TUNER = "driver"
_ALLOCATION = "allocation"
_TUNER_PATIENCE_S = 40.0
_OPS = ("open", "write", "fsync", "rename", "link", "mkdir", "unlink")


def kill_executor(scene: Scene) -> Iterator[None]:
    """Kill the executor of the trial, if it is not gone already."""
    for process in scene.processes():
        if process.role == f"{scene.trial_prefix}executor":
            process.send(signal.SIGKILL)
    yield


def kill_tuner(scene: Scene) -> Iterator[None]:
    """Kill the tuner."""
    _await_tuner(scene).send(signal.SIGKILL)
    yield


def interrupt_tuner(scene: Scene) -> Iterator[None]:
    """Send the tuner what Ctrl-C sends."""
    _await_tuner(scene).send(signal.SIGINT)
    yield


def terminate_tuner(scene: Scene) -> Iterator[None]:
    """Send the tuner SIGTERM."""
    _await_tuner(scene).send(signal.SIGTERM)
    yield


def kill_all(scene: Scene) -> Iterator[None]:
    """Kill the tuner, all executors and all ranks, as a loss of power does."""
    for process in sorted(scene.processes(), key=lambda each: each.role != TUNER):
        # The nodes of an allocation whose salloc is killed are busy up to its time limit, as
        # InactiveLimit is 0 by default; with the end of its command salloc gives them back.
        if process.role != _ALLOCATION:
            process.send(signal.SIGKILL)
    yield


def power_off_node(scene: Scene) -> Iterator[None]:
    """Take the power from the node of the trial's last rank; give it back once all have noticed."""
    yield from acts.power_off(scene)


def tuner_points(trace: Sequence[Entry]) -> list[Point]:
    """Return what the tuner does to files, before and after."""
    found = (entry.point for entry in trace if entry.point.role == TUNER)
    return list(dict.fromkeys(point for point in found if point.op in _OPS))


SWEEP_KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *(KINDS[name] for name in ("kill-rank", "kill-commit", "torn-write")),
        *(KINDS[name] for name in ("bit-flip", "truncate")),
        replace(KINDS["kill-executor"], bring_about=kill_executor),
        *(replace(KINDS[name], attempts=MOST_AT_ONCE) for name in ("io-error", "no-space")),
        Kind(
            name="kill-tuner",
            meaning="SIGKILL the tuner at a report of a trial",
            points=reports,
            bring_about=kill_tuner,
            attempts=0,
        ),
        Kind(
            name="kill-tuner-writing",
            meaning="SIGKILL the tuner before or after anything that it does to a file",
            points=tuner_points,
            act="kill",
            attempts=0,
        ),
        Kind(
            name="interrupt-tuner",
            meaning="Ctrl-C",
            points=reports,
            bring_about=interrupt_tuner,
            attempts=MOST_AT_ONCE,
        ),
        Kind(
            name="terminate-tuner",
            meaning="SIGTERM to the tuner",
            points=reports,
            bring_about=terminate_tuner,
            attempts=MOST_AT_ONCE,
        ),
        Kind(
            name="kill-all",
            meaning="SIGKILL the tuner, all executors and all ranks at the same time",
            points=reports,
            bring_about=kill_all,
            attempts=MOST_AT_ONCE,
        ),
        Kind(
            name="power-off",
            meaning="take the power from a node of the allocation; give it back later",
            points=reports,
            bring_about=power_off_node,
            attempts=MOST_AT_ONCE,
            needs="nodes",
        ),
    )
}

_END_TUNER = ("kill-tuner", "kill-tuner-writing")


def count_attempts(kind: str, *, in_allocation: bool) -> int:
    """Return how many attempts more a fault of a kind costs, at most. Pure.

    Parameters
    ----------
    in_allocation
        Whether the tuner is the command of an allocation, which ends with it, and all trials too.
    """
    if in_allocation and kind in _END_TUNER:
        return MOST_AT_ONCE
    return SWEEP_KINDS[kind].attempts


SWEEP_ACTS: dict[str, Act] = {
    kind.name: kind.bring_about for kind in SWEEP_KINDS.values() if kind.bring_about is not None
}


def _await_tuner(scene: Scene) -> TrialProcess:
    """Return the tuner, which may be about to be started again."""

    def find() -> list[TrialProcess]:
        return [process for process in scene.processes() if process.role == TUNER]

    wait_until(lambda: bool(find()), what="a tuner", timeout_s=_TUNER_PATIENCE_S)
    return find()[0]
