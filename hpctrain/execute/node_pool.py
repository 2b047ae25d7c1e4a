"""`NodePool`: which nodes of the job an attempt gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError, NodeLostError, RunStoppedError
from hpctrain.execute.failure_policy import classify_failure
from hpctrain.execute.health import bad_nodes
from hpctrain.execute.host_nodes import HostNodes
from hpctrain.execute.usable_nodes import NodeSource, UsableNodes
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.plan.launch_plan import LaunchPlan, StepLauncher
from hpctrain.plan.resources import Placement, place_on_nodes
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.client import retry
from hpctrain.slurm.nodes import SlurmNodes, allocated_hosts


class NodePool:
    """Places each attempt on the usable nodes.

    Parameters
    ----------
    plan
        On what the run runs at full size.
    source
        What knows the nodes; None on one machine, where there is nothing to choose.
    note
        Writes an event into the ledger.
    bad
        Nodes that an earlier executor of this job found bad, and why.
    check_stop
        Raises if the run is to stop, while nodes are tested or Slurm does not answer.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        source: NodeSource | None,
        note: Callable[..., None],
        bad: Mapping[str, str] | None = None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._nodes = (
            None if source is None else UsableNodes(source, bad=bad, check_stop=check_stop)
        )
        self._note = note
        self._check_stop = check_stop
        self._suspects: set[str] = set()
        self._used: set[str] = set()
        self._missing_workers = 0
        self._look_at = 0.0
        self._look: threading.Thread | None = None
        self._found: set[str] = set()

    def place(self) -> tuple[Placement, tuple[str, ...]]:
        """Return how the workers lie on nodes now, and the nodes of the job that have none.

        Raises
        ------
        NodeLostError
            If the nodes that are left are too few.
        LaunchError
            If Slurm does not answer which nodes are usable.
        RunStoppedError
            If the run is to stop meanwhile.
        """
        try:
            return self._place()
        except (LaunchError, NodeLostError) as error:
            # No attempt begins whose end would count.
            kind = classify_failure(error) if self._plan.in_job else FailureKind.START
            self._note("not-placed", kind=kind, error=str(error))
            raise

    def _place(self) -> tuple[Placement, tuple[str, ...]]:
        self._used.clear()
        full, job_nodes = self._plan.placement, self._plan.job_nodes
        if self._nodes is None:
            return full, ()
        if job_nodes.survives_loss or self._nodes.lost or self._suspects:
            living = self._await_living(self._nodes)
        elif full.is_even or full.nodes:
            self._used = set(full.nodes)
            return full, ()
        else:
            # What starts ranks need not share them out over nodes as it is planned.
            living = tuple(allocated_hosts())
        found = self._place_on(living)
        if found is None:
            raise NodeLostError(self._explain_shortage(self._slots_of(living)))
        self._used = set(living)
        self._missing_workers = full.num_workers - found[0].num_workers
        self._look_at = time.monotonic() + self._plan.resize_interval_s
        return found

    def place_again(self) -> tuple[Placement, tuple[str, ...]] | None:
        """Return what `place` would, by what is known of the nodes; None if they are too few.

        Not collective.
        """
        return None if self._nodes is None else self._place_on(self._nodes.known())

    def _slots_of(self, nodes: Iterable[str]) -> dict[str, int]:
        most = self._plan.placement.max_tasks_per_node
        return {node: self._plan.node_slots.get(node, most) for node in nodes}

    def _place_on(self, nodes: tuple[str, ...]) -> tuple[Placement, tuple[str, ...]] | None:
        full, fewest = self._plan.placement, self._plan.job_nodes.min_workers
        placement = place_on_nodes(full, self._slots_of(nodes), fewest=fewest)
        if placement is None:
            return None
        return placement, tuple(node for node in nodes if node not in placement.nodes)

    def watch(self, group: WorkerGroup) -> None:
        """Record the nodes that a group has lost. Not collective."""
        if self._nodes is None:
            return
        if self._plan.job_nodes.survives_loss:
            # The ledger has them already.
            self._nodes.leave_out(group.health.verdict().bad)
        for node, is_silent in group.lost_nodes.items():
            if is_silent:
                self.give_up(node, "silent")
            elif node not in self._nodes.lost:
                # The agent alone may have died.
                self._suspects.add(node)
        self._suspects.update(group.missing_nodes)

    def losses(self, group: WorkerGroup) -> dict[str, str]:
        """Return the nodes that an attempt which has failed has lost, and why. Not collective."""
        if self._nodes is None:
            return {}
        self.watch(group)
        # A slice is given up with its node, and the job, which has others, goes on.
        is_doubtful = self._plan.is_slice and bool(self._suspects or self._nodes.lost)
        if self._plan.job_nodes.survives_loss or is_doubtful:
            # What stops the run is raised before the next attempt.
            with suppress(LaunchError, RunStoppedError):
                self._ask_for_living(self._nodes)
            return {node: why for node, why in self._nodes.lost.items() if node in self._used}
        # Otherwise Slurm itself ends the job with a node that it knows to be down.
        return {node: "silent" for node, is_silent in group.lost_nodes.items() if is_silent}

    def _await_living(self, nodes: UsableNodes) -> tuple[str, ...]:
        """Return the nodes that can be used; ask again while Slurm has never answered."""

        def ask() -> tuple[str, ...]:
            try:
                return self._ask_for_living(nodes)
            except LaunchError:
                self._check_stop()
                raise

        return retry(ask, patience_s=timeouts.CONTROLLER_S)

    def _ask_for_living(self, nodes: UsableNodes) -> tuple[str, ...]:
        known = nodes.lost
        living = nodes.living(self._suspects)
        self._suspects.clear()
        for node, reason in nodes.lost.items():
            if node not in known:
                self._note("node-lost", node=node, reason=reason)
        return living

    def can_leave_out(self, error: Exception) -> bool:
        """Return whether the ranks could not be started for want of nodes that are not needed.

        Not collective.
        """
        return (
            isinstance(error, LaunchError)
            and self._nodes is not None
            and self._plan.job_nodes.survives_loss
            and bool(self._suspects or self._nodes.lost.keys() & self._used)
        )

    def why_kept(self, node: str) -> str:
        """Return why the run cannot go on without a node; empty if it can. Not collective."""
        if self._nodes is None:
            return "the run has no other node"
        if not self._plan.job_nodes.survives_loss:
            return (
                "the run has a fixed size and no spare node. ScalingConfig(num_workers=(fewest, "
                "most)) or SlurmConfig(spare_nodes=1) would let it go on without"
            )
        rest = self._slots_of(self._used - {node})
        fewest = self._plan.job_nodes.min_workers
        if place_on_nodes(self._plan.placement, rest, fewest=fewest) is None:
            room = sum(rest.values())
            return f"without it there is room for {room} of the {fewest} workers that the run needs"
        return ""

    def give_up(self, node: str, reason: str) -> None:
        """Use a node no more, until it is back. Not collective."""
        if self._nodes is not None and self._nodes.give_up(node, reason):
            self._note("node-lost", node=node, reason=reason)

    def leave_out(self, node: str, reason: str) -> None:
        """Never use a node of this job again, although it lives. Not collective."""
        assert self._nodes is not None
        self._nodes.leave_out({node: reason})

    def can_grow(self) -> bool:
        """Return whether nodes that the run lacks are back; looks in a thread, now and then.

        Not collective.
        """
        if self._nodes is None or not self._missing_workers or not self._nodes.lost:
            return False
        if self._look is not None and not self._look.is_alive():
            self._look = None
            if self._found:
                self._nodes.take_back(self._found)
                self._note("nodes-back", nodes=sorted(self._found))
                return True
        if self._look is None and time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + self._plan.resize_interval_s
            self._look = threading.Thread(target=self._look_again, daemon=True)
            self._look.start()
        return False

    def _look_again(self) -> None:
        assert self._nodes is not None
        self._found = self._nodes.look_again()

    def _explain_shortage(self, slots: Mapping[str, int]) -> str:
        assert self._nodes is not None
        lost = "; ".join(f"{node}: {reason}" for node, reason in self._nodes.lost.items())
        job_nodes = self._plan.job_nodes
        way_out = (
            ""
            if job_nodes.survives_loss
            else " A run with ScalingConfig(num_workers=(fewest, most)) or "
            "SlurmConfig(spare_nodes=1) goes on in its job."
        )
        return (
            f"{len(slots)} of {job_nodes.most} nodes of this job are left, with room for "
            f"{sum(slots.values())} workers, and the run needs {job_nodes.min_workers} ({lost}). "
            f"fit() with the same name resumes it in another job.{way_out}"
        )


def make_node_pool(
    plan: LaunchPlan,
    paths: RunPaths,
    *,
    mpiexec: StepLauncher | None,
    note: Callable[..., None],
    check_stop: Callable[[], None] = lambda: None,
) -> NodePool:
    """Return the nodes of the job or hostfile that this process is in. Not collective.

    Parameters
    ----------
    plan
        On what the run runs.
    paths
        The run directory.
    mpiexec
        What starts processes on the hosts of a file; None elsewhere.
    note
        Writes an event into the ledger.
    check_stop
        Raises if the run is to stop, while nodes are tested or Slurm does not answer.
    """
    job_id = environ.variable("SLURM_JOB_ID") if plan.in_job else None
    source: NodeSource | None = None
    if mpiexec is not None:
        source = HostNodes(tuple(plan.node_slots), mpiexec)
    elif job_id is not None:
        source = SlurmNodes(job_id, only=plan.node_slots if plan.is_slice else ())
    leaves_out = job_id is not None and plan.job_nodes.survives_loss
    bad = bad_nodes(paths, job_id=job_id) if leaves_out else None
    return NodePool(plan, source=source, note=note, bad=bad, check_stop=check_stop)
