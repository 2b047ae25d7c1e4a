"""`SlotNodes`: the steps of a trial's slot, one on each of its nodes, as its executor sees them.

A tuner keeps them from trial to trial (`hpctrain.tune.slot_steps`). They are an offer: an executor
that cannot use them starts steps of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.rank_forks import IN_SLOT, client_argv
from hpctrain.execute.slot_step import SlotProcess, SlotStep, SlotStepError
from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.log import log
from hpctrain.plan.argv import slot_ranks_argv

if TYPE_CHECKING:
    from hpctrain.execute.slot_processes import NodeProcesses, SlotRanks
    from hpctrain.plan.resources import Placement
    from hpctrain.plan.spec import RankSettings

SEPARATOR = ","
"""Between the tickets of several nodes."""


class SlotNodes:
    """Starts agents and ranks in the steps of a slot.

    Parameters
    ----------
    tickets
        Of `hpctrain.execute.slot_step.make_ticket`, one for each node.
    settings
        The surroundings of ranks.
    nodes
        Names of the nodes, in the same order.
    """

    def __init__(self, tickets: str, settings: RankSettings, *, nodes: Sequence[str]) -> None:
        self._steps = {
            node: SlotStep(ticket, settings)
            for node, ticket in zip(nodes, tickets.split(SEPARATOR), strict=True)
        }
        self.is_usable = True
        """Whether they are there, as far as is known."""

    def start_agents(
        self,
        command: Sequence[str],
        *,
        nodes: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> SlotProcess | NodeProcesses | None:
        """Start the agents of its nodes; return None, and give the slot up, if that cannot be.

        Not collective.

        Parameters
        ----------
        nodes
            Those that are to have one.
        """
        try:
            self._check(nodes)
            if len(self._steps) == 1:
                (step,) = self._steps.values()
                return step.start_agent(command, environment=environment, log=log)
            from hpctrain.execute.slot_processes import SlotAgents

            return SlotAgents(self._steps, command, environment=environment, log=log)
        except SlotStepError as error:
            self.give_up(str(error))
            return None

    def start_ranks(
        self,
        command: Sequence[str],
        *,
        placement: Placement,
        environment: Mapping[str, str],
        log: Path,
    ) -> SlotProcess | SlotRanks:
        """Start ranks as forks of a process of their node's step.

        Not collective.

        Parameters
        ----------
        command
            Of an ordinary rank.

        Raises
        ------
        LaunchError
            If they cannot be started there.
        """
        # One that has no server's name finds it where it runs.
        client = client_argv(IN_SLOT, command, asked=IN_SLOT)
        argv = slot_ranks_argv(find_mpiexec("wheel"), placement, client)
        try:
            self._check(placement.nodes)
            if len(self._steps) == 1:
                (step,) = self._steps.values()
                return step.start_ranks(
                    argv, command, placement=placement, environment=environment, log=log
                )
            from hpctrain.execute.slot_processes import SlotRanks

            return SlotRanks(
                self._steps, argv, command, placement=placement, environment=environment, log=log
            )
        except SlotStepError as error:
            # The agents, which the slot has started, are no use to other ranks.
            raise LaunchError(f"ranks cannot start in it: {error}", transient=True) from error

    def give_up(self, reason: str) -> None:
        """Do without them from here on, and end them: the run's own steps need what they have."""
        if not self.is_usable:
            return
        self.is_usable = False
        log(f"note: this run starts steps of its own, and none in the step of its slot: {reason}")
        job_id = environ.variable("SLURM_JOB_ID")
        marks = [step.mark for step in self._steps.values() if step.is_there()]
        if job_id is not None and marks:
            from hpctrain.slurm.steps import end_marked_steps

            end_marked_steps(job_id, *marks, timeout_s=timeouts.SLOT_STEP_END_S)

    def _check(self, nodes: Sequence[str]) -> None:
        if sorted(nodes) != sorted(self._steps):
            raise SlotStepError(f"it is on {', '.join(self._steps)}, and not on {', '.join(nodes)}")
