from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hpctrain.control.hub_tree import EXECUTOR, children_of, level_sizes, parent_of


def test_each_agent_is_the_child_of_its_parent_and_has_come_after_it(
    each_example: Callable[[Callable[[Any], None]], None],
):
    def check(draw: Any) -> None:
        fanout, num_agents = int(draw.integers(2, 12)), int(draw.integers(1, 400))
        num_children = Counter(parent_of(index, fanout) for index in range(num_agents))
        assert max(num_children.values()) <= fanout
        assert num_children[EXECUTOR] == min(fanout, num_agents)
        for parent in (EXECUTOR, *range(num_agents)):
            children = children_of(parent, fanout, num_agents)
            assert len(children) == num_children[parent]
            assert all(parent_of(child, fanout) == parent < child for child in children)

    each_example(check)


def test_levels_are_filled_one_after_the_other(
    each_example: Callable[[Callable[[Any], None]], None],
):
    def check(draw: Any) -> None:
        fanout, num_agents = int(draw.integers(2, 12)), int(draw.integers(0, 400))
        levels = [-1] * num_agents
        for index in range(num_agents):
            parent = parent_of(index, fanout)
            levels[index] = 0 if parent == EXECUTOR else levels[parent] + 1
        assert levels == sorted(levels)
        assert level_sizes(fanout, num_agents) == [
            size for _, size in sorted(Counter(levels).items())
        ]

    each_example(check)


@pytest.mark.parametrize(("num_agents", "num_levels"), [(32, 1), (33, 2), (1056, 2), (10_000, 3)])
def test_ten_thousand_nodes_are_three_levels(num_agents: int, num_levels: int):
    assert len(level_sizes(32, num_agents)) == num_levels
