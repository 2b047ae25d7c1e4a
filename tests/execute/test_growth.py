"""When ranks leave for a larger group, and which agents the next attempt gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.growth import Growth
from hpctrain.plan.resources import Placement
from tests.plans import make_plan

PLACEMENT = replace(make_plan("slurm").placement, tasks_per_node=(2, 2))


@dataclass
class Spare:
    """Stands for the step of ranks that wait."""

    has_ended: bool = False


@dataclass
class Agents:
    """Stands for agents, behind which ranks come to wait."""

    come: int = 0
    spare: Any = None
    is_closed: bool = False
    absent: tuple[str, ...] = ()
    are_coming: bool = False
    looks: int = 0

    def num_waiting(self) -> int:
        self.looks += 1
        return self.come

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Pool:
    """Stands for the nodes of a job, one of which is back."""

    back: list[bool] = field(default_factory=lambda: [False, True])
    given_up: list[str] = field(default_factory=list)

    def can_grow(self) -> bool:
        return bool(self.back) and self.back.pop(0)

    def place_again(self) -> tuple[Placement, tuple[str, ...]]:
        return PLACEMENT, ("node3",)

    def give_up(self, node: str, reason: str) -> None:
        self.given_up.append(node)


@dataclass
class Group:
    """Stands for the ranks that train, beside which the others are started."""

    refuses: Exception | None = None
    attempt: int = 2
    nodes: tuple[str, ...] = ("node1",)
    started: list[Any] = field(default_factory=list)

    def start_following(self, placement: Placement, idle_nodes: Sequence[str], _: Agents) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.started.append((placement, idle_nodes))


class Larger:
    """A group of two, and what may become one of four."""

    def __init__(self, spare: Spare | None, refuses: Exception | None = None) -> None:
        self.agents, self.pool, self.spare = Agents(), Pool(), spare
        self.group = Group(refuses)
        self.growth = Growth(
            self.pool,  # type: ignore[arg-type]
            make_agents=lambda: self.agents,  # type: ignore[arg-type, return-value]
            make_spare=lambda: spare,  # type: ignore[arg-type, return-value]
        )

    def can_grow(self) -> bool:
        return self.growth.can_grow(self.group)  # type: ignore[arg-type]

    def exchange(self, *idle_nodes: str) -> tuple[bool, bool]:
        """Return whether the next attempt gets the new agents, and whether the old ones ended."""
        old = Agents()
        given = self.growth.exchange(old, PLACEMENT, idle_nodes)  # type: ignore[arg-type]
        return given is self.agents, old.is_closed


def test_all_ranks_of_it_are_waited_for() -> None:
    larger = Larger(Spare())
    assert not larger.can_grow()
    for come in (0, 3):
        larger.agents.come = come
        assert not larger.can_grow()
    larger.agents.come = 4
    assert larger.can_grow()
    assert larger.group.started == [(PLACEMENT, ("node3",))]
    # Until the others have left they are heard.
    looks = larger.agents.looks
    assert larger.can_grow()
    assert larger.agents.looks > looks
    assert larger.exchange("node3") == (True, True)
    larger.growth.close()
    assert not larger.agents.is_closed


def test_for_another_placement_they_are_of_no_use() -> None:
    larger = Larger(Spare())
    larger.agents.come = 4
    assert [larger.can_grow() for _ in range(3)] == [False, False, True]
    assert larger.exchange() == (False, False)
    assert larger.agents.is_closed


def test_nothing_is_waited_for_where_no_ranks_can_wait() -> None:
    larger = Larger(None)
    assert [larger.can_grow() for _ in range(3)] == [False, True, True]
    assert larger.group.started == []
    assert larger.exchange("node3") == (False, False)


@pytest.mark.parametrize("fault", [LaunchError("no step"), OSError("full"), "ended", "late"])
def test_nothing_is_waited_for_that_does_not_come(
    fault: Exception | str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if fault == "late":
        monkeypatch.setattr(timeouts, "SPARE_RANKS_S", 0.0)
    refuses = fault if isinstance(fault, Exception) else None
    larger = Larger(Spare(has_ended=fault == "ended"), refuses)
    # What is refused, or is over at once, is known at once.
    expected = [False, fault != "late", True, True]
    assert [larger.can_grow() for _ in range(4)] == expected
    assert larger.agents.is_closed
    said = "the larger group starts when the smaller one has left" in capsys.readouterr().err
    # Where another launcher than srun starts ranks, that is as it should be.
    assert said == (fault != "ended")
    assert larger.exchange("node3") == (False, False)


def test_ranks_train_on_where_the_nodes_do_not_come_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "SPARE_RANKS_S", 0.0)
    larger = Larger(Spare())
    # Those that train do so.
    larger.agents.absent = ("node1", "node2")
    assert [larger.can_grow() for _ in range(4)] == [False] * 4
    assert larger.pool.given_up == ["node2"]
    assert larger.agents.is_closed
    # They may be back once more.
    monkeypatch.undo()
    larger.pool.back, larger.agents = [True], Agents(come=4)
    assert [larger.can_grow() for _ in range(2)] == [False, True]


def test_agents_that_still_come_are_waited_for_where_the_ranks_are_refused() -> None:
    larger = Larger(spare := Spare())
    assert [larger.can_grow() for _ in range(2)] == [False] * 2
    spare.has_ended = True
    larger.agents.absent, larger.agents.are_coming = ("node2",), True
    assert not larger.can_grow()
    larger.agents.absent = ()
    # The nodes are there, and have room when the others have left.
    assert larger.can_grow()
    assert larger.pool.given_up == []


def test_a_node_is_doubted_once_in_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SPARE_RANKS_S", 0.0)
    larger = Larger(Spare())
    larger.pool.back = [True, True]
    larger.agents.absent = ("node2",)
    # Agents that do not come beside a group may come when it has left.
    assert [larger.can_grow() for _ in range(4)] == [False, False, False, True]
    assert larger.pool.given_up == ["node2"]
