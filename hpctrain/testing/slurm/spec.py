"""Specification of a cluster: a frozen value, checked when it is created."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hpctrain.testing.slurm.errors import ClusterError

Mode = Literal["namespaces", "flat"]

HEAD = "head"
"""Name of the node that the controller runs on and users log in to."""

MAX_NUM_NODES = 200
"""Nodes whose addresses fit into one /24 network beside the host and the head."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Shape of a virtual cluster. All its nodes are equal."""

    num_nodes: int = 4
    """Compute nodes, named ``node1``, ``node2`` ..."""
    cpus_per_node: int = 4
    """CPUs that each node reports; the machine may have fewer."""
    mem_mib: int = 8192
    """Memory that each node reports."""
    gpus_per_node: int = 4
    """GPUs that each node reports: Slurm allocates them, no program can use them."""
    mode: Mode = "namespaces"
    """``namespaces`` (root): each node is a machine of its own. ``flat``: only several slurmds."""
    private_tmp: bool = False
    """Each compute node has its own empty ``/tmp`` with nothing but ``shared`` and the state dir.

    The head keeps the host's: what a user on the login node writes there, no job can see.
    """
    shared: tuple[Path, ...] = ()
    """Directories below ``/tmp`` which all nodes see although ``private_tmp`` is set."""
    accounting: bool = False
    """Run slurmdbd and a database; without, ``sacct`` fails as it does on a cluster without."""
    enforce_part_limits: bool = False
    """Refuse a job beyond its partition's limits at submission instead of leaving it pending."""
    memory_limits: bool = False
    """The kernel kills what uses more memory than its job asked for; needs cgroup v1."""
    slurmd_timeout_s: int = 30
    """Seconds after which Slurm considers a silent node dead; 300 at most sites."""
    mpi_default: str = "none"
    """Default of ``srun --mpi``; Slurm's own is ``none``."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes <= MAX_NUM_NODES:
            raise ClusterError(
                f"num_nodes={self.num_nodes} is out of range. Use 1 to {MAX_NUM_NODES}."
            )
        for name in ("cpus_per_node", "mem_mib", "slurmd_timeout_s"):
            if getattr(self, name) < 1:
                raise ClusterError(f"{name}={getattr(self, name)} is out of range. Use 1 or more.")
        if self.gpus_per_node < 0:
            raise ClusterError(
                f"gpus_per_node={self.gpus_per_node} is out of range. Use 0 or more."
            )
        if self.mode not in get_args(Mode):
            raise ClusterError(f"mode={self.mode!r} is unknown. Use one of {get_args(Mode)}.")
        if self.private_tmp and self.mode == "flat":
            raise ClusterError(
                "private_tmp=True needs nodes that have a file system of their own. "
                "Use mode='namespaces'."
            )
        if self.memory_limits and self.mode == "flat":
            raise ClusterError(
                "memory_limits=True needs nodes that mount cgroups of their own. "
                "Use mode='namespaces'."
            )
        for directory in self.shared:
            if not directory.is_absolute():
                raise ClusterError(f"shared={directory} is a relative path. Use an absolute one.")

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the compute nodes, in order."""
        return tuple(f"node{number}" for number in range(1, self.num_nodes + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the spec as values that `json` can write."""
        return {**dataclasses.asdict(self), "shared": [str(path) for path in self.shared]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ClusterSpec:
        """Make a spec from what `to_json` returned."""
        return cls(**{**fields, "shared": tuple(Path(path) for path in fields["shared"])})
