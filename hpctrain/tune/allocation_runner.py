"""`AllocationRunner`: each trial is a run of its own on some nodes of the allocation."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpctrain import environ
from hpctrain.errors import HpctrainError, LaunchError
from hpctrain.execute.health import bad_nodes
from hpctrain.execute.process import process_start_time
from hpctrain.execute.usable_nodes import UsableNodes
from hpctrain.launch.cancel import end_executor, record_end
from hpctrain.launch.life import job_is_alive
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.visibility import NOT_SEEN, explain_invisible
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.scaling_config import ScalingConfig
from hpctrain.slurm.nodes import SlurmNodes, allocated_hosts
from hpctrain.tune.local_runner import LocalRunner, MakeTrainer, RunOf
from hpctrain.tune.node_slots import need_on_nodes
from hpctrain.tune.runner import End, Look
from hpctrain.tune.slot_steps import SlotSteps
from hpctrain.tune.slots import Need
from hpctrain.tune.trial import Trial

_MOST_NAMED = 8
_JOB_ENDS = (FailureKind.PREEMPTION.value, FailureKind.TIME_LIMIT.value)


class AllocationRunner(LocalRunner):
    """Runs trials on the nodes of the allocation that this process is in.

    Their executors are processes of this host, and their ranks steps of the job on the nodes of
    their slots, with CPUs, GPUs and memory of their own.
    """

    launcher = "allocation"

    def __init__(self, make_trainer: MakeTrainer, run_of: RunOf, *, decides: bool = False) -> None:
        super().__init__(make_trainer, run_of, decides=decides)
        self._slot_steps = SlotSteps()
        self._left_out: dict[str, str] = {}

    def close(self) -> None:
        """Start no more trials. Not collective. Those that were begun go on."""
        super().close()
        self._slot_steps.close()

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
        if (
            status is not None
            and status.job_id is not None
            and _is_elsewhere(status)
            and (not status.state.is_final or _failed_with_its_job(paths, status))
            and (_is_own(status) or not job_is_alive(status.job_id))
        ):
            _end_leftover(paths, status)
            with suppress(OSError):
                record_end(paths, f"job {status.job_id}, in which it ran, has ended")
            return False
        return super().attach(trial)

    def look(self, trial: Trial) -> Look:
        """Return what is new of a trial. Not collective."""
        look = super().look(trial)
        if look.end is None:
            return look
        self._slot_steps.give_back(trial.trial_id, is_clean=not look.end.failed)
        end = self._explain_end(trial, look.end)
        self._watch(trial).note_end(end)
        return replace(look, end=end)

    def _explain_end(self, trial: Trial, end: End) -> End:
        """Return an end with what it has to do with nodes, or with the end of the job."""
        paths = RunPaths(self._run_of(trial.trial_id))
        lost, kind = find_losses(events := read_events(paths))
        status = read_status(paths)
        has_job_ended = end.was_stopped and kind in _JOB_ENDS
        if status is not None and _is_elsewhere(status):
            # An earlier tuner began it in another job, whose nodes and end do not concern this one.
            if has_job_ended or (end.failed and _failed_with_its_job(paths, status)):
                reason = f"job {status.job_id}, in which it ran, ends"
                return replace(end, is_orphaned=True, reason=reason)
            return end
        if end.failed and status is not None and status.error_type == LaunchError.__name__:
            lost = {**_find_bad(paths, trial), **lost, **_test_nodes(trial.slot.nodes)}
            self._left_out.update(lost)
            if lost and self._left_out.keys() >= _hosts():
                end = replace(end, is_for_all=True, reason=explain_all(self._left_out))
        is_cut_off = has_job_ended or ((end.failed or end.was_stopped) and bool(lost))
        has_run = has_job_ended or has_reached_ranks(events)
        return replace(end, is_cut_off=is_cut_off, has_run=has_run, lost_nodes=lost)

    def _offer(self, trial: Trial, submission: Submission, variables: Mapping[str, str]) -> str:
        return self._slot_steps.take(trial.trial_id, submission, nodes=trial.slot.nodes)

    def _withdraw(self, trial: Trial) -> None:
        self._slot_steps.give_back(trial.trial_id, is_clean=False)

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


def has_reached_ranks(events: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the ranks of an attempt have begun since a run was last begun. Pure.

    Parameters
    ----------
    events
        Those of its ledger.
    """
    has_reached = False
    for event in events:
        if event["event"] == "executor-started":
            has_reached = False
        elif event["event"] == "attempt-ended":
            # They are known once all ranks have joined.
            has_reached = has_reached or bool(event.get("nodes"))
    return has_reached


def explain_all(left_out: Mapping[str, str]) -> str:
    """Return why no node of an allocation can be used. Pure; not collective.

    Parameters
    ----------
    left_out
        Why each of them cannot.

    Examples
    --------
    >>> explain_all({"a": "its /tmp is full", "b": "silent"})
    'no node of this job can be used: a: its /tmp is full; b: silent.'
    """
    # The run directories of trials differ.
    kinds = {reason.partition("/")[0] for reason in left_out.values()}
    if len(kinds) == 1 and kinds.pop().startswith(NOT_SEEN):
        thing = next(iter(left_out.values())).removeprefix(NOT_SEEN)
        return explain_invisible("no node of this job sees", thing)
    each = "; ".join(f"{node}: {reason}" for node, reason in [*left_out.items()][:_MOST_NAMED])
    more = f"; and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
    return f"no node of this job can be used: {each}{more}."


def _find_bad(paths: RunPaths, trial: Trial) -> dict[str, str]:
    """Return which nodes of a trial cannot be used, as it has found in this job."""
    found = bad_nodes(paths, job_id=environ.variable("SLURM_JOB_ID"), is_last=True)
    return {node: reason for node, reason in found.items() if node in trial.slot.nodes}


def _hosts() -> set[str]:
    """Return the nodes of the job; a name that none has, where they are not known."""
    try:
        return set(allocated_hosts())
    except LaunchError:
        return {""}


def _is_own(status: RunStatus) -> bool:
    """Return whether a run is, or was, in the job of this process, in whichever start of it."""
    return status.job_id is not None and status.job_id == environ.variable("SLURM_JOB_ID")


def _is_elsewhere(status: RunStatus) -> bool:
    """Return whether a run is, or was, in another job than this process, or another start of it.

    A job that is queued again keeps its number, and may begin on other nodes.
    """
    if _is_own(status):
        return environ.restart_count() > status.restarts
    return status.job_id is not None


def _failed_with_its_job(paths: RunPaths, status: RunStatus) -> bool:
    """Return whether a run has failed for what ends with its job: nodes, and steps on them."""
    if status.state is not RunState.FAILED:
        return False
    # An executor that outlives its job for some seconds can start nothing more in it.
    return status.error_type == LaunchError.__name__ or bool(find_losses(read_events(paths))[0])


def _end_leftover(paths: RunPaths, status: RunStatus) -> None:
    """End an executor of this host whose job is over: it would write once another one goes on.

    Where salloc has started it, on a login node, it does not end with its job.
    """
    is_here = status.owner_host == socket.gethostname()
    if is_here and process_start_time(status.owner_pid) == status.owner_start:
        try:
            end_executor(paths, status)
        except (HpctrainError, OSError) as error:
            log(f"warning: {error}")


def _test_nodes(nodes: Collection[str]) -> dict[str, str]:
    """Return on which of some nodes no process starts, and why."""
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None:
        return {}
    usable = UsableNodes(SlurmNodes(job_id, only=nodes))
    usable.test(nodes)
    return usable.lost
