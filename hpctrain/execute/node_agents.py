"""`NodeAgents`: the agents of a job's nodes, which outlive the attempts that need them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ, timeouts
from hpctrain.control.hub import AGENT_SILENCE_S, SECRET_BYTES, Hub
from hpctrain.control.local_socket import new_socket_name
from hpctrain.control.proof import Credentials
from hpctrain.errors import LaunchError
from hpctrain.execute.process import StepProcess
from hpctrain.execute.step_launcher import launcher_variables
from hpctrain.plan.argv import agent_step_argv, host_agents_argv
from hpctrain.plan.launch_plan import LaunchPlan, StepLauncher
from hpctrain.plan.process_argv import agent_argv
from hpctrain.plan.resources import Placement
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    from hpctrain.config import FailureConfig
    from hpctrain.execute.node_environment import NodeEnvironment
    from hpctrain.execute.slot_nodes import SlotNodes
    from hpctrain.execute.spare_ranks import SpareRanks


class NodeAgents:
    """One agent on each node, connected to one hub.

    An attempt that follows another on the same nodes finds them there: it need not ask Slurm for a
    step, and the nodes need not start an interpreter each.

    Parameters
    ----------
    paths
        The run directory.
    node_timeout_s
        Seconds after which a silent node is given up.
    survives_loss
        Whether the run goes on in its job when a node is lost.
    is_slice
        Whether other runs are in the job: agents do not end it when the executor is lost.
    mpiexec
        What starts them on the hosts of a hostfile; None is Slurm's srun.
    slot
        The steps of the run's slot, where a tuner keeps some.
    """

    def __init__(
        self,
        paths: RunPaths,
        *,
        node_timeout_s: float = AGENT_SILENCE_S,
        survives_loss: bool = False,
        is_slice: bool = False,
        mpiexec: StepLauncher | None = None,
        slot: SlotNodes | None = None,
    ) -> None:
        self.mpiexec = mpiexec
        """What starts agents, and ranks too; None is Slurm's srun for the former."""
        self._paths = paths
        self._survives_loss = survives_loss
        self._is_slice = is_slice
        self._has_lease = (survives_loss and not is_slice) or mpiexec is not None
        self._node_timeout_s = node_timeout_s
        self._slot = slot
        self._hub: Hub | None = None
        self._step: StepProcess | None = None
        self._nodes: frozenset[str] = frozenset()
        self._attempt = 0
        self._secret_file: Path | None = None
        self.socket = ""
        """Name of the socket for the ranks of a node, with ``%N`` for the node's."""
        self.failed_in_slot = False
        """Whether ranks of this attempt did not start in a step that was there."""
        self.spare: SpareRanks | None = None
        """The ranks that wait for the next attempt, where there are to be some."""

    @property
    def node_timeout_s(self) -> float:
        """Seconds after which a silent node is given up."""
        return self._node_timeout_s

    @property
    def slot(self) -> SlotNodes | None:
        """The steps of the run's slot, where ranks are to start; None where they have their own."""
        slot = self._slot
        return slot if slot is not None and slot.is_usable else None

    @property
    def step(self) -> StepProcess:
        """What started them."""
        assert self._step is not None
        return self._step

    def gather(
        self,
        placement: Placement,
        idle_nodes: Sequence[str],
        *,
        attempt: int,
        environment: NodeEnvironment | None = None,
        spare: str = "",
    ) -> Hub:
        """Return the hub of the agents of an attempt's nodes: those that are there, or new ones.

        Not collective.

        Parameters
        ----------
        environment
            The packed environment that new ones start in; None is that of this process.
        spare
            Which of the ranks that wait begin with this attempt.

        Raises
        ------
        LaunchError
            If they cannot be started.
        """
        nodes = frozenset((*placement.nodes, *idle_nodes))
        if self._hub is not None and (nodes, attempt) == (self._nodes, self._attempt):
            # They were gathered for this attempt before: its ranks may have come by now.
            return self._hub
        self._attempt, self.failed_in_slot = attempt, False
        if self._hub is not None and self._are_there(nodes):
            self._hub.begin_attempt(attempt, spare=spare)
            return self._hub
        self.close()
        self._nodes = nodes
        self._hub = Hub(attempt=attempt, silence_s=self._node_timeout_s)
        try:
            self._start(self._hub, placement, idle_nodes, attempt=attempt, packed=environment)
        except BaseException:
            # Half of them is of no use to the next attempt.
            self.close()
            raise
        return self._hub

    def waiting(
        self, placement: Placement, idle_nodes: Sequence[str], *, spare: str
    ) -> list[bytes] | None:
        """Return what ranks have sent that wait; None if the nodes of an attempt need other agents.

        Not collective.
        """
        nodes = frozenset((*placement.nodes, *idle_nodes))
        if self._hub is None or not self._are_there(nodes):
            return None
        return self._hub.waiting(spare)

    @property
    def absent(self) -> list[str]:
        """Nodes whose agents have not come, or are gone."""
        if self._hub is None:
            return sorted(self._nodes)
        return sorted((self._nodes - self._hub.nodes) | self._hub.lost_nodes.keys())

    @property
    def are_coming(self) -> bool:
        """Whether what starts them has not ended."""
        return self._step is not None and self._step.returncode() is None

    def num_waiting(self) -> int:
        """Return how many ranks wait, after a look at what has come.

        Not collective. For agents of which no group has taken the hub.
        """
        if self._hub is None or self.spare is None:
            return 0
        self._hub.poll(0.0)
        return 0 if self._hub.lost_nodes else len(self._hub.waiting(self.spare.name))

    def give_slot_up(self, reason: str) -> None:
        """Start in no step of a slot from here on, nor in one that waited. Not collective."""
        if self.spare is not None and self.spare.is_taken:
            self.failed_in_slot = True
            self.spare.give_up(reason)
        if (slot := self.slot) is not None:
            self.failed_in_slot = True
            self.close()
            slot.give_up(reason)

    def find_down(self) -> list[str]:
        """Return which nodes are down, by Slurm, of those whose agents have not come.

        Not collective.
        """
        job_id = environ.variable("SLURM_JOB_ID")
        missing = [] if self._hub is None else sorted(self._nodes - self._hub.nodes)
        if not missing or job_id is None or self.mpiexec is not None:
            return []
        from hpctrain.slurm.nodes import SlurmNodes

        try:
            usable = SlurmNodes(job_id, only=missing).usable()
        except LaunchError:
            # It is asked again later.
            return []
        return [node for node in missing if node not in usable]

    def close(self, patience_s: float = 0.0) -> None:
        """Let the agents leave; end them after `patience_s` seconds."""
        hub, step = self._hub, self._step
        self._hub = self._step = None
        if hub is not None:
            hub.send_agents("agent-exit")
            hub.close()
            if self.spare is not None:
                # Its ranks can begin with these agents alone.
                self.spare.end()
        if step is not None:
            is_lost = hub is not None and bool(hub.lost_nodes)
            step.wait(0.0 if is_lost else patience_s)
            step.kill(**({"patience_s": timeouts.LOST_NODE_STEP_S} if is_lost else {}))
        if self._secret_file is not None:
            with suppress(OSError):
                self._secret_file.unlink()

    def _are_there(self, nodes: frozenset[str]) -> bool:
        hub = self._hub
        return (
            hub is not None
            and nodes == self._nodes
            and self.step.returncode() is None
            and not hub.lost_nodes
            and hub.num_ranks == 0
        )

    def _start(
        self,
        hub: Hub,
        placement: Placement,
        idle_nodes: Sequence[str],
        *,
        attempt: int,
        packed: NodeEnvironment | None,
    ) -> None:
        self._secret_file = self._paths.root / f".secret-{attempt}"
        secret = _write_secret(self._secret_file)
        credentials = Credentials(secret, run=str(self._paths.root), attempt=attempt)
        num_agents = placement.num_nodes + len(idle_nodes)
        fanout = environ.hub_fanout()
        in_tree = num_agents > fanout
        addresses = hub.listen_tcp(
            credentials, fanout=fanout if in_tree else None, num_agents=num_agents
        )
        self.socket = f"{new_socket_name()}.%N"
        hosts = () if self.mpiexec is None else (*placement.nodes, *idle_nodes)
        make_command = partial(
            agent_argv,
            sys.executable if packed is None else packed.python,
            attempt=attempt,
            socket=self.socket,
            secret=str(self._secret_file),
            addresses=addresses,
            lease_s=self._node_timeout_s if self._has_lease else None,
            hosts=hosts,
            in_tree=in_tree,
        )
        environment = environ.without_export_variables(environ.environment())
        log = self._paths.logs(attempt) / "agents.out"
        if (slot := self.slot) is not None:
            self._step = slot.start_agents(
                make_command(cwd=None),
                nodes=(*placement.nodes, *idle_nodes),
                environment=environment,
                log=log,
            )
        if self._step is not None:
            return
        command = make_command(cwd=os.getcwd())
        if packed is not None:
            environment = packed.variables(environment)
        if self.mpiexec is not None:
            environment |= launcher_variables(self.mpiexec.kind, local=False)
            export = environ.portable_names(environment)
            argv = host_agents_argv(self.mpiexec, hosts, command, export=export)
        else:
            argv = agent_step_argv(
                placement,
                command,
                idle_nodes=idle_nodes,
                survives_loss=self._survives_loss,
                is_slice=self._is_slice,
            )
        job_id = environ.variable("SLURM_JOB_ID")
        self._step = StepProcess(argv, environment=environment, log=log, job_id=job_id)


def make_node_agents(
    paths: RunPaths,
    plan: LaunchPlan,
    config: FailureConfig,
    *,
    mpiexec: StepLauncher | None = None,
    slot: SlotNodes | None = None,
) -> NodeAgents:
    """Return the agents of a run, which have not been started. Not collective.

    Parameters
    ----------
    plan
        On what it runs.
    config
        When a silent node is given up.
    mpiexec, slot
        As in `NodeAgents`.
    """
    return NodeAgents(
        paths,
        node_timeout_s=config.node_timeout_s,
        survives_loss=plan.job_nodes.survives_loss,
        is_slice=plan.is_slice,
        mpiexec=mpiexec,
        slot=slot,
    )


def _write_secret(path: Path) -> bytes:
    """Write a new secret into a file that only the user can read, and return it."""
    secret = os.urandom(SECRET_BYTES)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    return secret
