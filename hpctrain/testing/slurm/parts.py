"""The nodes and daemons that make up one cluster, and the order in which they start and end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpctrain.testing.slurm import accounting
from hpctrain.testing.slurm.addresses import Addresses
from hpctrain.testing.slurm.configuration import write_configuration
from hpctrain.testing.slurm.daemons import Daemon, is_listening
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import Layout
from hpctrain.testing.slurm.leftovers import NODE_VARIABLE, end_leftovers
from hpctrain.testing.slurm.namespaces import Namespaces
from hpctrain.testing.slurm.places import Place
from hpctrain.testing.slurm.processes import run_bounded, wait_until
from hpctrain.testing.slurm.spec import HEAD, ClusterSpec
from hpctrain.testing.slurm.status import SINFO, ClusterStatus, NodeStatus, parse_sinfo


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Processes of one cluster. It keeps nothing in memory: the state directory has the state."""

    spec: ClusterSpec
    addresses: Addresses
    layout: Layout

    def start(self, *, database_cache: Path | None, timeout_s: float) -> None:
        """Start everything and wait until all nodes are idle."""
        write_configuration(self.spec, self.layout, self.addresses)
        if self.spec.mode == "namespaces":
            self.namespaces().boot([HEAD, *self.spec.node_names])
        self.munged().start(timeout_s=timeout_s)
        if self.spec.accounting:
            accounting.start_accounting(
                self.place(HEAD), self.layout, self.addresses, database_cache=database_cache
            )
        self.controller().start(timeout_s=timeout_s)
        for node in self.spec.node_names:
            self.slurmd(node).start(timeout_s=timeout_s)
        wait_until(
            lambda: all(node.state == "idle" for node in self.status().nodes),
            what=f"{self.spec.num_nodes} nodes to be idle",
            timeout_s=timeout_s,
            log=self.layout.log_file("slurmctld"),
        )

    def end_processes(self) -> None:
        """End every process of the cluster. Harmless if repeated."""
        if self.spec.mode == "namespaces":
            self.namespaces().destroy()
            return
        daemons = [self.controller(), *map(self.slurmd, self.spec.node_names), self.munged()]
        if self.spec.accounting:
            head = self.place(HEAD)
            daemons.append(accounting.slurmdbd(head, self.layout, self.addresses))
            daemons.append(accounting.mariadb(head, self.layout))
        for daemon in daemons:
            daemon.kill()
        end_leftovers(self.layout.slurm_conf)

    def status(self) -> ClusterStatus:
        """Ask the controller for the state of every node."""
        controller_alive = self.is_on(HEAD) and self.controller().process() is not None
        states: dict[str, tuple[str, str]] = {}
        # Without a controller sinfo tries for many seconds.
        if controller_alive:
            states = parse_sinfo(run_bounded(self.place(HEAD).command(SINFO), timeout_s=20).stdout)
        nodes = []
        for node in self.spec.node_names:
            state, reason = states.get(node, ("unknown", ""))
            powered = self.is_on(node)
            nodes.append(
                NodeStatus(
                    name=node,
                    address=self.addresses.of(node),
                    powered=powered,
                    slurmd_alive=powered and self.slurmd(node).process() is not None,
                    state=state,
                    reason=reason,
                )
            )
        return ClusterStatus(controller_alive=controller_alive, nodes=tuple(nodes))

    def munged(self) -> Daemon:
        """Return the authentication daemon, which all nodes share through its socket."""
        layout = self.layout
        return Daemon(
            name="munged",
            argv=(
                *("munged", "--force", f"--key-file={layout.munge_key}"),
                *(f"--socket={layout.munge_socket}", f"--pid-file={layout.pid_file('munged')}"),
                *(f"--log-file={layout.log_file('munged')}", f"--seed-file={layout.run}/seed"),
            ),
            place=self.place(HEAD),
            layout=layout,
        )

    def controller(self) -> Daemon:
        """Return slurmctld."""
        address, port = self.addresses.head, self.addresses.controller_port
        return Daemon(
            name="slurmctld",
            argv=("slurmctld", "-f", str(self.layout.slurm_conf)),
            place=self.place(HEAD),
            layout=self.layout,
            is_ready=lambda: is_listening(address, port),
        )

    def slurmd(self, node: str) -> Daemon:
        """Return the slurmd of a node that is on."""
        self._check_node(node)
        return Daemon(
            name=f"slurmd-{node}",
            argv=("slurmd", "-N", node, "-f", str(self.layout.slurm_conf)),
            place=self.place(node),
            layout=self.layout,
        )

    def place(self, node: str) -> Place:
        """Return where commands for the head or for a node run."""
        environ = {"SLURM_CONF": str(self.layout.slurm_conf)}
        if node != HEAD:
            self._check_node(node)
        if self.spec.mode == "flat":
            return Place(environ={**environ, NODE_VARIABLE: node})
        init = self.namespaces().init_of(node)
        if init is None:
            raise ClusterError(f"{node} is off. Switch it on with power_on first.")
        return Place(init=init, environ=environ)

    def is_on(self, node: str) -> bool:
        """Return whether a node has power."""
        return self.spec.mode == "flat" or self.namespaces().init_of(node) is not None

    def namespaces(self) -> Namespaces:
        """Return the nodes as machines, in mode ``namespaces``."""
        return Namespaces(spec=self.spec, layout=self.layout, addresses=self.addresses)

    def machines(self, node: str) -> Namespaces:
        """Return the machines, of which ``node`` must be one that can be broken."""
        self._check_node(node)
        if self.spec.mode == "flat":
            raise ClusterError(
                "The nodes of a flat cluster have neither power nor network of their own. "
                "Use mode='namespaces'."
            )
        return self.namespaces()

    def _check_node(self, node: str) -> None:
        if node not in self.spec.node_names:
            raise ClusterError(
                f"There is no {node!r}. Use one of {', '.join(self.spec.node_names)}."
            )
