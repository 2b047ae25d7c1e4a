"""The CPUs that the ranks of a node share."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from hpctrain.world import Communicator, World


@dataclass(frozen=True, kw_only=True)
class NodeCpus:
    """Ranks and CPUs of a node."""

    num_ranks: int
    num_cpus: int
    """CPUs that at least one of its ranks may run on."""


def find_node_cpus(world: World, comm: Communicator) -> dict[int, NodeCpus]:
    """Return the nodes of all ranks by their `node_rank`. Collective."""
    # If the launcher binds ranks to CPUs, the affinity of each rank has only its own.
    ranks = comm.allgather((world.node_rank, os.sched_getaffinity(0)))
    cpus: dict[int, set[int]] = {}
    for node, mine in ranks:
        cpus.setdefault(node, set()).update(mine)
    on_node = Counter(node for node, _ in ranks)
    return {n: NodeCpus(num_ranks=on_node[n], num_cpus=len(found)) for n, found in cpus.items()}


def count_threads(asked: int, world: World, comm: Communicator) -> int:
    """Return how many threads this rank should use, at most `asked`. Collective.

    The tree libraries synchronize all threads of a rank many times in a round, by spinning. With
    more threads than CPUs on a node, a round takes ten times as long.
    """
    node = find_node_cpus(world, comm)[world.node_rank]
    return max(1, min(asked, node.num_cpus // node.num_ranks))
