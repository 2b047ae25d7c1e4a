"""`AllocationRunner`: each trial is a run of its own on some nodes of the allocation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpctrain import environ
from hpctrain.errors import LaunchError
from hpctrain.execute.usable_nodes import UsableNodes
from hpctrain.launch.cancel import record_end
from hpctrain.launch.life import job_is_alive
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.scaling_config import ScalingConfig
from hpctrain.slurm.nodes import SlurmNodes
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.node_slots import need_on_nodes
from hpctrain.tune.runner import End, Look
from hpctrain.tune.slots import Need
from hpctrain.tune.trial import Trial

_JOB_ENDS = (FailureKind.PREEMPTION.value, FailureKind.TIME_LIMIT.value)


class AllocationRunner(LocalRunner):
    """Runs trials on the nodes of the allocation that this process is in.

    Their executors are processes of this host, and their ranks steps of the job on the nodes of
    their slots, with CPUs, GPUs and memory of their own.
    """

    launcher = "allocation"

    def need_of(self, trial: Trial) -> Need:
        """Return what the workers of a trial need, and on how many nodes. Not collective."""
        return need_on_nodes(self._scaling_of(trial))

    def attach(self, trial: Trial) -> bool:
        """Return whether the run of a trial goes on, or has come to an end by itself.

        Not collective. What was run in an allocation that is over has ended, whatever its files
        say.
        """
        paths = RunPaths(self._run_of(trial.trial_id))
        status = read_status(paths)
        # An executor that outlives its job for some seconds can start nothing more in it.
        has_failed_to_start = (
            status is not None
            and status.state is RunState.FAILED
            and status.error_type == LaunchError.__name__
        )
        if (
            status is not None
            and (has_failed_to_start or not status.state.is_final)
            and status.job_id is not None
        ):
            is_elsewhere = status.job_id != environ.variable("SLURM_JOB_ID")
            if is_elsewhere and not job_is_alive(status.job_id):
                with suppress(OSError):
                    record_end(paths, f"job {status.job_id}, in which it ran, has ended")
                return False
        return super().attach(trial)

    def look(self, trial: Trial) -> Look:
        """Return what is new of a trial. Not collective."""
        look = super().look(trial)
        if look.end is None:
            return look
        return replace(look, end=self._explain_end(trial, look.end))

    def _explain_end(self, trial: Trial, end: End) -> End:
        """Return an end with what it has to do with nodes, or with the end of the job."""
        paths = RunPaths(self._run_of(trial.trial_id))
        lost, kind = find_losses(read_events(paths))
        status = read_status(paths)
        if end.failed and status is not None and status.error_type == LaunchError.__name__:
            lost = {**lost, **_test_nodes(trial.slot.nodes)}
        is_cut_off = (end.was_stopped and kind in _JOB_ENDS) or (end.failed and bool(lost))
        return replace(end, is_cut_off=is_cut_off, lost_nodes=lost)

    def _share_of(self, trial: Trial, scaling: ScalingConfig) -> Mapping[str, AllocatedNode] | None:
        need = need_on_nodes(scaling)
        return {
            node: AllocatedNode(cpus=count * need.cpus_each, gpus=count * need.gpus_each)
            for node, count in trial.slot.nodes.items()
        }


def find_losses(events: Iterable[Mapping[str, Any]]) -> tuple[dict[str, str], str | None]:
    """Return which nodes a run has lost since it was last begun, and what ended its last attempt.

    Pure.

    Parameters
    ----------
    events
        Those of its ledger.
    """
    lost: dict[str, str] = {}
    kind = None
    for event in events:
        if event["event"] == "executor-started":
            lost, kind = {}, None
        elif event["event"] == "node-lost":
            lost[str(event.get("node"))] = str(event.get("reason"))
        elif event["event"] == "attempt-ended":
            kind = event.get("kind")
    return lost, kind


def _test_nodes(nodes: Collection[str]) -> dict[str, str]:
    """Return on which of some nodes no process starts, and why."""
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None:
        return {}
    usable = UsableNodes(SlurmNodes(job_id, only=nodes))
    usable.test(nodes)
    return usable.lost
