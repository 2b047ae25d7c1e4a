"""`Health`: which nodes of an attempt can be used, judged by their reports."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.plan.visibility import NOT_SEEN, explain_invisible
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.timeouts import describe

LEAST_FREE_BYTES = 16 * 2**20
"""A node with less room than this is bad: in ``/tmp`` or ``/dev/shm``, where MPI and data loaders
keep what ranks share, or in the run directory."""
DOUBTFUL_SKEW_S = 5.0
"""A clock that is off by more is reported: times in logs and of files cannot be compared."""
BAD_SKEW_S = 300.0
"""A clock that is off by more makes a node bad: munge and Kerberos refuse credentials there."""

# What an agent prints that cannot even read the secret of the run; srun when one has ended.
_REFUSAL = re.compile(r"^hpctrain: (\S+) cannot be used: (.+)$", re.MULTILINE)
_ENDED = re.compile(
    r"^srun: error: ([\w.-]+): task \d+: (Exited with exit code \d+)$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class NodeHealth:
    """What is wrong with nodes, by their names."""

    bad: Mapping[str, str]
    """Nodes that cannot be used."""
    doubtful: Mapping[str, str]
    """Nodes that can be used, but that the run reports."""
    unseen: str = ""
    """What none of the nodes sees, where that is why none can be used."""

    @property
    def allows_start(self) -> bool:
        """Whether ranks can be started on all of the nodes."""
        return not self.bad and not self.unseen


def judge(
    reports: Mapping[str, Mapping[str, Any]],
    *,
    num_nodes: int = 0,
    gpus_on: Callable[[str], int] = lambda _: 0,
) -> NodeHealth:
    """Return what is wrong with the nodes of an attempt. Pure.

    Not collective. What all nodes share is not a fault of one of them: where the storage is full
    for all, the run raises when it has something to write; a directory that none of them sees is
    one that nodes do not share.

    Parameters
    ----------
    reports
        Reports of nodes, by name: see `describe_node` and `examine_storage`. ``skew`` is by how
        many seconds the clock is ahead at least, or behind if negative.
    num_nodes
        How many nodes there are; 0 if that is not known.
    gpus_on
        Returns how many GPUs the ranks of a node use, by its name.
    """
    bad: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    most_gpus = max((report.get("gpus", 0) for report in reports.values()), default=0)
    full = [node for node, report in reports.items() if _is_short(report.get("storage_free"))]
    for node, report in reports.items():
        skew = report.get("skew", 0.0)
        clock = (
            f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the executor's"
        )
        gpus = report.get("gpus", 0)
        if reason := report.get("complaint"):
            bad[node] = reason
        elif report.get("problem"):
            bad[node] = f"it cannot write into {report['storage']}: {report['problem']}"
        elif node in full and len(full) < len(reports):
            bad[node] = _describe_space(report["storage"], report["storage_free"])
        elif _is_short(report.get("tmp_free")):
            bad[node] = _describe_space(report["tmp"], report["tmp_free"])
        elif _is_short(report.get("shm_free")):
            bad[node] = _describe_space("/dev/shm", report["shm_free"])
        elif gpus < min(needed := gpus_on(node), most_gpus):
            bad[node] = f"it has {gpus} GPUs, others have {most_gpus}, and its ranks need {needed}"
        elif abs(skew) > BAD_SKEW_S:
            bad[node] = clock
        elif abs(skew) > DOUBTFUL_SKEW_S:
            doubtful[node] = clock
        elif node in full:
            doubtful[node] = _describe_space(report["storage"], report["storage_free"])
    if len(bad) == num_nodes and len(reasons := set(bad.values())) == 1:
        reason = reasons.pop()
        if reason.startswith(NOT_SEEN):
            return NodeHealth(bad={}, doubtful=doubtful, unseen=reason.removeprefix(NOT_SEEN))
    return NodeHealth(bad=bad, doubtful=doubtful)


def explain_bad_nodes(health: NodeHealth, *, in_allocation: bool) -> str:
    """Return the message for nodes that cannot be used. Not collective."""
    bad = health.bad
    if health.unseen:
        return explain_invisible("no node of this job sees", health.unseen)
    text = "; ".join(f"{node} cannot be used: {reason}" for node, reason in bad.items())
    if not in_allocation:
        return f"{text}. Make it usable, then run the same script again."
    return (
        f"{text}. Tell the site; until it is repaired, leave it out with "
        f"SlurmConfig(sbatch_args=['--exclude={','.join(bad)}'])."
    )


def bad_nodes(paths: RunPaths, *, job_id: str | None, is_last: bool = False) -> dict[str, str]:
    """Return the nodes of a job that were found bad or left out, and why, as the ledger has it.

    Not collective. Another job may find them repaired.

    Parameters
    ----------
    is_last
        Whether only those count that the last executor has found bad, and none that it, or a
        policy, has left out.
    """
    kinds = ("node-bad",) if is_last else ("node-bad", "node-left-out")
    found: dict[str, str] = {}
    for event in read_events(paths):
        if is_last and event["event"] == "executor-started":
            found.clear()
        elif event["event"] in kinds and event.get("job_id") == job_id:
            found[event["node"]] = event["reason"]
    return found


class Health:
    """What the nodes of one attempt report of themselves.

    Parameters
    ----------
    num_nodes
        How many nodes it has.
    gpus_on
        Returns how many GPUs the ranks of a node use, by its name.
    is_slice
        Whether they are some of the nodes of a job: what none of them sees, others may.
    """

    def __init__(
        self,
        *,
        num_nodes: int = 0,
        gpus_on: Callable[[str], int] = lambda _: 0,
        is_slice: bool = False,
    ) -> None:
        self.num_nodes = num_nodes
        """How many nodes there are; 0 if that is not known."""
        self._is_slice = is_slice
        self._gpus_on = gpus_on
        self._began = time.monotonic()
        self.reports: dict[str, dict[str, Any]] = {}
        """By name of the node."""

    def take(self, report: Mapping[str, Any]) -> None:
        """Take in a report of a node; it may come in parts."""
        known = self.reports.setdefault(str(report["node"]), {})
        known.update(report)
        if "time" in report:
            # It was sent after the attempt began, and before now: what is left over is the skew.
            # The clock of this node may have been set since then.
            ahead = report["time"] - time.time()
            behind = ahead + time.monotonic() - self._began
            known["skew"] = ahead if ahead > 0 else min(behind, 0.0)

    def read(self, agents_output: str) -> None:
        """Take in what agents have printed that could not reach the executor."""
        for node, reason in _REFUSAL.findall(agents_output):
            self.reports.setdefault(node, {})["complaint"] = reason
        for node, reason in _ENDED.findall(agents_output):
            self.reports.setdefault(node, {}).setdefault("complaint", f"its agent {reason.lower()}")

    def is_complete(self) -> bool:
        """Return whether all nodes have reported whether they can be used."""
        return len(self.reports) >= self.num_nodes and not self.unanswered()

    def is_unanimous(self) -> bool:
        """Return whether all that have reported so far do not see the same thing."""
        return bool(judge(self.reports, num_nodes=len(self.reports)).unseen)

    def unanswered(self) -> Collection[str]:
        """Return the nodes of which it is not known whether they can use the storage."""
        return [
            node
            for node, report in self.reports.items()
            if not {"problem", "complaint"} & report.keys()
        ]

    def give_up(self, nodes: Collection[str], *, after_s: float) -> None:
        """Take it that the storage of nodes hangs."""
        for node in nodes:
            reason = f"its storage does not answer, {describe(after_s)} after its ranks have begun"
            self.reports[node]["complaint"] = reason

    def verdict(self) -> NodeHealth:
        """Return what is wrong as far as it is known."""
        of_all = 0 if self._is_slice else self.num_nodes
        return judge(self.reports, num_nodes=of_all, gpus_on=self._gpus_on)


def _is_short(free: int | None) -> bool:
    return free is not None and free < LEAST_FREE_BYTES


def _describe_space(directory: str, free: int) -> str:
    if free == 0:
        return f"{directory} has no room for another file"
    least = LEAST_FREE_BYTES // 2**20
    return f"{directory} has {free / 2**20:.1f} MiB free, and {least} are needed"
