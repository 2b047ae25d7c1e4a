"""`UsableNodes`: which nodes of the allocation can be used now."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from hpctrain.errors import LaunchError

_TESTS_AT_A_TIME = 32
_LOOK_INTERVAL_S = 0.5


class NodeSource(Protocol):
    """What knows the nodes of an allocation."""

    def usable(self) -> Mapping[str, bool]:
        """Return the nodes that are not known to be down, in order; true where it is in doubt.

        Raises
        ------
        LaunchError
            If that cannot be found out now.
        """

    def starts_a_process(self, node: str) -> bool:
        """Return whether a process starts on a node. Called by several threads."""


class UsableNodes:
    """The nodes of the allocation of this process. Used from one thread, but for `look_again`.

    Slurm reports a dead node only after SlurmdTimeout, five minutes as a rule; the silence of its
    agent shows it earlier. So a node is lost if either shows it.

    Parameters
    ----------
    source
        What knows the nodes.
    bad
        Nodes that are not to be used, although they live, and why.
    check_stop
        Raises if the run is to stop, while nodes are tested.
    """

    def __init__(
        self,
        source: NodeSource,
        *,
        bad: Mapping[str, str] | None = None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._check_stop = check_stop
        self._bad = dict(bad or {})
        self._known: tuple[str, ...] = ()
        self._lost: dict[str, str] = {}

    @property
    def lost(self) -> dict[str, str]:
        """Nodes that are not used any more, and why."""
        return {**self._lost, **self._bad}

    def give_up(self, node: str, reason: str) -> bool:
        """Use a node no more; return whether that is news. Not collective."""
        if node in self.lost:
            return False
        self._lost[node] = reason
        return True

    def leave_out(self, bad: Mapping[str, str]) -> None:
        """Never use nodes again, although they live. Not collective."""
        self._bad.update(bad)

    def take_back(self, nodes: Collection[str]) -> None:
        """Use nodes again. Not collective."""
        for node in nodes:
            self._lost.pop(node, None)

    def known(self) -> tuple[str, ...]:
        """Return the nodes that can be used, as far as is known. Not collective."""
        lost = self.lost
        return tuple(node for node in self._known if node not in lost)

    def living(self, suspects: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that can be used, in Slurm's order. Not collective.

        If Slurm does not answer, those that it named last.

        Parameters
        ----------
        suspects
            Nodes that are tested unless Slurm knows that they are down.

        Raises
        ------
        LaunchError
            If it has never answered.
        """
        try:
            usable = self._source.usable()
        except LaunchError:
            if not self._known:
                raise
            usable = {node: False for node in self._known if node not in self._lost}
        for node in (*self._known, *suspects):
            if node not in usable:
                self.give_up(node, "Slurm reports that it is down")
        self._known = tuple(dict.fromkeys((*usable, *self._known)))
        doubtful = (node for node, in_doubt in usable.items() if in_doubt or node in suspects)
        self.test(node for node in doubtful if node not in self._lost)
        return self.known()

    def test(self, nodes: Iterable[str]) -> None:
        """Give up those of some nodes on which no process starts. Not collective.

        Many at a time: where one node keeps all agents of a job from starting, all are tested.
        """
        pool = concurrent.futures.ThreadPoolExecutor(_TESTS_AT_A_TIME)
        try:
            tests = {node: pool.submit(self._source.starts_a_process, node) for node in nodes}
            while concurrent.futures.wait(tests.values(), _LOOK_INTERVAL_S).not_done:
                self._check_stop()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for node, test in tests.items():
            if not test.result():
                self.give_up(node, "no process starts there")

    def look_again(self) -> set[str]:
        """Return the nodes that were given up, and work after all. Not collective.

        A node that Slurm itself has taken from the job does not come back to it.
        """
        try:
            usable = self._source.usable()
        except LaunchError:
            return set()
        lost = [node for node in self._lost if node in usable and node not in self._bad]
        return {node for node in lost if self._source.starts_a_process(node)}
