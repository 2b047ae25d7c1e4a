"""Worlds of ranks that are threads."""

from __future__ import annotations

from typing import Any

from hpctrain import World


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
