"""The state of a cluster and its nodes."""

from __future__ import annotations

from dataclasses import dataclass

# As `sinfo -o %t` says it; a flag such as "*" (does not answer) behind it is not among them.
_READY_STATES = frozenset({"idle", "mix", "alloc", "comp", "drain", "drng", "resv", "plnd"})


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """State of one compute node."""

    name: str
    address: str
    powered: bool
    """Whether its namespaces exist; always true in mode ``flat``."""
    slurmd_alive: bool
    state: str
    """Slurm's short state, such as ``idle``, ``alloc``, ``down*``; ``unknown`` without an
    answer."""
    reason: str
    """Why the node is down or drained, in the controller's words."""

    @property
    def ready(self) -> bool:
        """Whether the node responds to the controller."""
        return self.state in _READY_STATES


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """State of a cluster at one moment."""

    controller_alive: bool
    nodes: tuple[NodeStatus, ...]

    @property
    def ready(self) -> bool:
        """Whether every node responds to the controller."""
        return self.controller_alive and all(node.ready for node in self.nodes)

    def of(self, node: str) -> NodeStatus:
        """Return the state of one node."""
        return next(status for status in self.nodes if status.name == node)


SINFO = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N|%t|%E")
"""Command that lists each node once."""


def parse_sinfo(text: str) -> dict[str, tuple[str, str]]:
    """Return state and reason of each node from the output of `SINFO`."""
    rows = (line.split("|", maxsplit=2) for line in text.splitlines())
    return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}
