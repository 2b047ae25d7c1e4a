"""Worlds of ranks that are threads, or none."""

from __future__ import annotations

from typing import Any

from hpctrain import World


def make_world(rank: int = 0, size: int = 1, *, num_nodes: int = 1, attempt: int = 1) -> World:
    """Return the world of a rank on nodes, from node1 on, with equally many ranks each."""
    per_node = size // num_nodes
    return World(
        attempt=attempt,
        world_rank=rank,
        world_size=size,
        local_rank=rank % per_node,
        local_world_size=per_node,
        node_rank=rank // per_node,
        num_nodes=num_nodes,
        hostname=f"node{rank // per_node + 1}",
    )


def world_on(nodes: list[int], comm: Any) -> World:
    """Return the world of a rank, where each rank is on the node of its number in `nodes`."""
    return World(
        attempt=1,
        world_rank=comm.rank,
        world_size=len(nodes),
        local_rank=0,
        local_world_size=1,
        node_rank=nodes[comm.rank],
        num_nodes=len(set(nodes)),
        hostname="",
    )
