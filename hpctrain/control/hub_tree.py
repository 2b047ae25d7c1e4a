"""Which agent relays for which: a tree over the order in which agents come. Pure.

The agents are numbered from 0, as they come. The first `fanout` are children of the executor, the
next ones of agent 0, then of agent 1, and so on: level by level, so a parent has come before its
children, and no level begins before the one above it is full.
"""

from __future__ import annotations

EXECUTOR = -1
"""Stands for the executor, the root of the tree."""


def parent_of(index: int, fanout: int) -> int:
    """Return the parent of an agent, or `EXECUTOR`.

    Parameters
    ----------
    index
        Number of the agent.
    fanout
        Largest number of children of the executor, and of each agent.

    Examples
    --------
    >>> [parent_of(index, 2) for index in range(7)]
    [-1, -1, 0, 0, 1, 1, 2]
    """
    return index // fanout - 1


def children_of(index: int, fanout: int, num_agents: int) -> range:
    """Return the children of an agent, or of the `EXECUTOR`, among so many agents.

    Examples
    --------
    >>> children_of(EXECUTOR, 2, 5), children_of(0, 2, 5), children_of(1, 2, 5)
    (range(0, 2), range(2, 4), range(4, 5))
    """
    begin = fanout * (index + 1)
    return range(min(begin, num_agents), min(begin + fanout, num_agents))


def level_sizes(fanout: int, num_agents: int) -> list[int]:
    """Return how many agents each level has, from the executor's children on.

    Examples
    --------
    >>> level_sizes(32, 10_000)
    [32, 1024, 8944]
    """
    sizes: list[int] = []
    room, left = fanout, num_agents
    while left > 0:
        sizes.append(min(room, left))
        left -= sizes[-1]
        room *= fanout
    return sizes
