"""Which nodes are tested, and that tests of many do not take as long as one after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.execute.usable_nodes import UsableNodes

LIMIT_S = 30.0


class Nodes:
    """Nodes of which Slurm knows something, and on some of which no process starts."""

    def __init__(self, usable: Mapping[str, bool], *, broken: tuple[str, ...] = ()) -> None:
        self.answers, self.broken = usable, broken
        self.tested: list[str] = []

    def usable(self) -> Mapping[str, bool]:
        return self.answers

    def starts_a_process(self, node: str) -> bool:
        self.tested.append(node)
        return node not in self.broken


class SilentNodes(Nodes):
    """Nodes on which a test does not end before it is let go."""

    def __init__(self, usable: Mapping[str, bool]) -> None:
        super().__init__(usable)
        self.may_end = threading.Event()

    def starts_a_process(self, node: str) -> bool:
        super().starts_a_process(node)
        return self.may_end.wait(LIMIT_S)


def test_a_suspect_that_slurm_knows_to_be_down_is_given_up_and_not_tested():
    nodes = Nodes({"n1": False, "n2": False, "n4": True, "n5": False}, broken=("n2",))
    usable = UsableNodes(nodes)
    assert usable.living({"n1", "n2", "n3"}) == ("n1", "n4", "n5")
    assert sorted(nodes.tested) == ["n1", "n2", "n4"]
    assert usable.lost == {"n2": "no process starts there", "n3": "Slurm reports that it is down"}


def test_nodes_are_tested_many_at_a_time():
    names = [f"n{number}" for number in range(96)]
    # It passes 32 at once, or none.
    barrier = threading.Barrier(32)

    class Together(Nodes):
        def starts_a_process(self, node: str) -> bool:
            barrier.wait(LIMIT_S)
            return super().starts_a_process(node)

    nodes = Together(dict.fromkeys(names, False), broken=("n7", "n80"))
    usable = UsableNodes(nodes)
    usable.test(names)
    assert sorted(nodes.tested) == sorted(names)
    assert list(usable.lost) == ["n7", "n80"]


def test_a_run_that_is_to_stop_does_not_wait_for_its_nodes():
    def stop() -> None:
        raise RunStoppedError("it was asked to")

    nodes = SilentNodes(dict.fromkeys((f"n{number}" for number in range(1000)), True))
    usable = UsableNodes(nodes, check_stop=stop)
    try:
        with pytest.raises(RunStoppedError, match="it was asked to"):
            usable.living()
        assert not nodes.may_end.is_set()
    finally:
        nodes.may_end.set()
    # The others are not begun.
    assert len(nodes.tested) <= 32
    assert usable.lost == {}


def test_suspects_are_tested_where_slurm_does_not_answer():
    class Unreachable(Nodes):
        def usable(self) -> Mapping[str, bool]:
            if self.tested:
                raise LaunchError("no answer")
            return super().usable()

    nodes = Unreachable({"n1": True, "n2": False}, broken=("n2",))
    usable = UsableNodes(nodes)
    assert usable.living() == ("n1", "n2")
    assert usable.living({"n2"}) == ("n1",)
    assert usable.lost == {"n2": "no process starts there"}
