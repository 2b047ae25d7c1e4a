"""`Growth`: agents and ranks of a larger group, which start while the smaller one trains.

Nodes that were lost and are back need agents and ranks, and no agent of the others knows of them.
So all of them get new ones, and train on until these wait: then they are asked to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.node_pool import NodePool
from hpctrain.execute.rank_group import RankGroup
from hpctrain.execute.spare_ranks import SpareRanks
from hpctrain.log import log as print_note
from hpctrain.own_time import Deadline
from hpctrain.plan.resources import Placement


class Growth:
    """At most one larger group at a time, for the attempt after the one that runs.

    Parameters
    ----------
    node_pool
        Knows whether nodes are back, and how the next attempt would lie on all of them.
    make_agents
        Returns agents that have not been started.
    make_spare
        Returns what starts ranks ahead; None where ranks of this run cannot wait.
    """

    def __init__(
        self,
        node_pool: NodePool,
        *,
        make_agents: Callable[[], NodeAgents],
        make_spare: Callable[[], SpareRanks | None],
    ) -> None:
        self._node_pool = node_pool
        self._make_agents = make_agents
        self._make_spare = make_spare
        self._agents: NodeAgents | None = None
        self._where: tuple[Placement, tuple[str, ...]] | None = None
        self._expected = Deadline(0.0)
        self._due_after = 0
        self._doubted_in = 0

    def can_grow(self, group: RankGroup) -> bool:
        """Return whether the ranks of a group are to leave, since a larger one can begin.

        Not collective. It can if its ranks wait, or are not to. If nodes do not come after all, the
        group trains on.

        Parameters
        ----------
        group
            The ranks that train.
        """
        if self._due_after != group.attempt:
            if self._agents is not None:
                is_due = self._look(self._agents, group)
            else:
                is_due = self._node_pool.can_grow() and self._begin(group)
            if not is_due:
                return False
            self._due_after = group.attempt
        elif self._agents is not None:
            # They get no sign of life otherwise.
            self._agents.num_waiting()
        return True

    def _begin(self, group: RankGroup) -> bool:
        """Start the larger group; return whether it is not waited for."""
        spare, self._where = self._make_spare(), self._node_pool.place_again()
        if spare is None or self._where is None:
            return True
        self._agents = self._make_agents()
        self._agents.spare = spare
        self._expected = Deadline(timeouts.SPARE_RANKS_S)
        try:
            group.start_following(*self._where, self._agents)
        except (LaunchError, OSError) as error:
            self._give_up(str(error))
            return True
        if is_refused := spare.has_ended:
            # Another launcher than srun, as a rule. Agents have had no time to come.
            self.close()
        return is_refused

    def _look(self, agents: NodeAgents, group: RankGroup) -> bool:
        """Return whether the larger group waits, or is not waited for any more."""
        assert self._where is not None
        assert agents.spare is not None
        come, size = agents.num_waiting(), self._where[0].num_workers
        if come >= size:
            return True
        # srun starts nothing anywhere if one node does not answer: those that train are not it.
        absent = [node for node in agents.absent if node not in group.nodes]
        has_failed = agents.spare.has_ended and not (absent and agents.are_coming)
        if not self._expected.is_over and not has_failed:
            return False
        # Once: if agents do not come beside this group for another reason, it has to leave.
        if absent and self._doubted_in != group.attempt:
            self._doubted_in = group.attempt
            self.close()
            for node in absent:
                self._node_pool.give_up(node, "no agent has come from there")
            return False
        self._give_up(f"{come} of {size} have come")
        return True

    def _give_up(self, reason: str) -> None:
        print_note(f"note: the larger group starts when the smaller one has left: {reason}")
        self.close()

    def exchange(
        self, agents: NodeAgents, placement: Placement, idle_nodes: Sequence[str]
    ) -> NodeAgents:
        """Return the agents for an attempt: those whose ranks wait for it, or else the same.

        Not collective. Of two, it ends the others.
        """
        if self._agents is None:
            return agents
        if self._where != (placement, tuple(idle_nodes)):
            self.close()
            return agents
        agents.close()
        agents, self._agents = self._agents, None
        return agents

    def close(self) -> None:
        """End what was started. Not collective."""
        agents, self._agents = self._agents, None
        if agents is not None:
            agents.close()
