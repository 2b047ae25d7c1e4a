"""`JobNodes`: which nodes of the job can be used now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpctrain.errors import LaunchError
from hpctrain.plan.argv import node_test_argv
from hpctrain.slurm.client import run_slurm
from hpctrain.slurm.output import parse_job_nodes, parse_node_states

_TIMEOUT_S = 15.0
_TEST_TIMEOUT_S = 10.0
# A node that is drained goes on with the job it has.
_UNUSABLE = frozenset(["DOWN", "FAIL", "POWERING_DOWN", "POWERED_DOWN"])
# Slurm says it of a node that did not answer once, until it asks again, minutes later.
_DOUBTFUL = "NOT_RESPONDING"


class JobNodes:
    """The nodes of the job that this process is in. Used from one thread, but for `look_again`.

    Slurm believes in a dead node for as long as SlurmdTimeout says, five minutes as a rule; the
    silence of its agent says it earlier. So both are heard, and a node is lost if either says so.

    Parameters
    ----------
    job_id
        The job.
    bad
        Nodes that are not to be used, although they live, and why.
    """

    def __init__(self, job_id: str, *, bad: Mapping[str, str] | None = None) -> None:
        self._job_id = job_id
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

    def living(self) -> tuple[str, ...]:
        """Return the nodes that can be used, in Slurm's order. Not collective.

        If Slurm does not answer, those that it named last.

        Raises
        ------
        LaunchError
            If it has never answered.
        """
        try:
            states = self._usable()
        except LaunchError:
            if not self._known:
                raise
            states = {node: set() for node in self._known if node not in self._lost}
        for node in self._known:
            if node not in states:
                self.give_up(node, "Slurm says that it is down")
        self._known = tuple(dict.fromkeys((*states, *self._known)))
        self.test(n for n in states if _DOUBTFUL in states[n] and n not in self._lost)
        lost = self.lost
        return tuple(node for node in self._known if node not in lost)

    def test(self, nodes: Iterable[str]) -> None:
        """Give up those of some nodes on which no process starts. Not collective."""
        for node in nodes:
            if not self._starts_a_process(node):
                self.give_up(node, "no process starts there")

    def look_again(self) -> set[str]:
        """Return the nodes that were given up, and work after all. Not collective.

        A node that Slurm itself has taken from the job does not come back to it.
        """
        try:
            usable = self._usable()
        except LaunchError:
            return set()
        lost = [node for node in self._lost if node in usable and node not in self._bad]
        return {node for node in lost if self._starts_a_process(node)}

    def _usable(self) -> dict[str, set[str]]:
        """Return the state of each node that is not down, in Slurm's order."""
        nodes = parse_job_nodes(self._ask("show", "job", self._job_id))
        hosts = self._ask("show", "hostnames", nodes).split()
        states = parse_node_states(self._ask("show", "node", nodes))
        known = {host: states.get(host, set()) for host in hosts}
        return {host: state for host, state in known.items() if not state & _UNUSABLE}

    def _ask(self, *words: str) -> str:
        answer = run_slurm(["scontrol", "--oneliner", *words], timeout_s=_TIMEOUT_S)
        if answer.returncode != 0:
            raise LaunchError(
                f"scontrol {' '.join(words)}: {answer.stderr.strip()}", transient=True
            )
        return answer.stdout

    def _starts_a_process(self, node: str) -> bool:
        try:
            answer = run_slurm(node_test_argv(node), timeout_s=_TEST_TIMEOUT_S)
        except LaunchError:
            return False
        return answer.returncode == 0
