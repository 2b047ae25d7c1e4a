"""`VirtualCluster`: start, attach to, use, break and stop a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from hpctrain.testing.slurm import accounting
from hpctrain.testing.slurm.addresses import Addresses, pick_addresses
from hpctrain.testing.slurm.components import SEARCH_PATH, check_components
from hpctrain.testing.slurm.configuration import write_configuration
from hpctrain.testing.slurm.daemons import Daemon, is_listening
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import DEFAULT_STATE_DIR, Layout
from hpctrain.testing.slurm.leftovers import NODE_VARIABLE, end_leftovers
from hpctrain.testing.slurm.namespaces import Namespaces
from hpctrain.testing.slurm.places import Place
from hpctrain.testing.slurm.processes import run_bounded, wait_until
from hpctrain.testing.slurm.spec import HEAD, ClusterSpec
from hpctrain.testing.slurm.status import SINFO, ClusterStatus, NodeStatus, parse_sinfo


@dataclass(frozen=True, kw_only=True)
class VirtualCluster:
    """A throw-away Slurm cluster on this machine.

    Made by `start` or `attach`. As a context manager it is stopped at the end. A cluster outlives
    the process that started it. Nodes are called ``node1``, ``node2`` ...; ``head`` is where the
    controller runs. In mode ``flat`` all of these are the host itself.
    """

    spec: ClusterSpec
    addresses: Addresses
    layout: Layout

    @classmethod
    def start(
        cls,
        spec: ClusterSpec,
        *,
        state_dir: Path = DEFAULT_STATE_DIR,
        database_cache: Path | None = None,
        timeout_s: float = 60,
    ) -> VirtualCluster:
        """Start a cluster and wait until all its nodes are idle.

        Parameters
        ----------
        spec
            What it shall look like.
        state_dir
            Empty or new directory for all its files, with a path of at most 40 characters.
        database_cache
            Directory that keeps an empty accounting database between clusters, which saves
            seconds; None for no cache.
        timeout_s
            How long each daemon may take to start, and all nodes to become idle.

        Raises
        ------
        ClusterError
            If something is missing or does not start. Nothing is left then but the logs.
        """
        check_components(spec)
        layout = Layout.of(state_dir)
        for directory in spec.shared:
            if not directory.is_dir():
                raise ClusterError(f"shared={directory} is not a directory. Make it first.")
        addresses = pick_addresses(spec)
        layout.create(spec)
        cluster = cls(spec=spec, addresses=addresses, layout=layout)
        # From here on another process can attach and stop, should this one die.
        record = {"spec": spec.to_json(), "number": addresses.number}
        layout.record.write_text(json.dumps(record, indent=2))
        try:
            cluster._start(database_cache, timeout_s)
        except BaseException as error:
            cluster._end_processes()
            layout.remove(keep_logs=True)
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}\nAll logs are kept in {layout.log}.") from error
            raise
        return cluster

    @classmethod
    def attach(cls, state_dir: Path = DEFAULT_STATE_DIR) -> VirtualCluster:
        """Return the cluster that some process, perhaps gone by now, has started.

        Parameters
        ----------
        state_dir
            Its state directory.

        Raises
        ------
        ClusterError
            If there is no cluster.
        """
        layout = Layout.of(state_dir)
        try:
            record = json.loads(layout.record.read_text())
        except FileNotFoundError as error:
            raise ClusterError(
                f"There is no virtual cluster in {state_dir}. Start one, or name the state "
                f"directory it was started with."
            ) from error
        spec = ClusterSpec.from_json(record["spec"])
        addresses = Addresses(spec=spec, number=record["number"])
        return cls(spec=spec, addresses=addresses, layout=layout)

    def stop(self, *, keep: bool = False) -> None:
        """End everything that runs on the cluster and remove it. Harmless if repeated.

        Parameters
        ----------
        keep
            Leave the state directory for a look at the logs. A later ``stop()`` removes it.
        """
        if not self.layout.state_dir.exists():
            return
        self._end_processes()
        if not keep:
            self.layout.remove(keep_logs=False)

    def __enter__(self) -> VirtualCluster:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- using it

    @property
    def environ(self) -> dict[str, str]:
        """Variables which a process needs, beside its own, to be a client of the cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf), "PATH": SEARCH_PATH}

    @property
    def state_dir(self) -> Path:
        """Directory of all its files."""
        return self.layout.state_dir

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the compute nodes, in order."""
        return self.spec.node_names

    def command_on(
        self,
        node: str,
        argv: Sequence[str],
        *,
        cwd: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the argv which, run on the host, runs ``argv`` on a node as a Slurm client.

        Parameters
        ----------
        node
            ``head`` or a compute node.
        argv
            The command.
        cwd
            Its working directory, as the node sees it.
        environ
            More variables for it, beside the caller's and `environ`.
        """
        return self._place(node).command(argv, cwd=str(cwd), environ=environ)

    def login_command(self, argv: Sequence[str], *, cwd: Path = Path("/")) -> list[str]:
        """Return the argv which, run on the host, runs ``argv`` where users log in.

        Parameters
        ----------
        argv
            The command.
        cwd
            Its working directory.
        """
        return self.command_on(HEAD, argv, cwd=cwd)

    def run_on(
        self,
        node: str,
        argv: Sequence[str],
        *,
        cwd: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node and return what it printed; its exit status is not looked at.

        Parameters
        ----------
        node
            ``head`` or a compute node.
        argv
            The command.
        cwd
            Its working directory, as the node sees it.
        environ
            More variables for it, beside the caller's and `environ`.
        timeout_s
            How long it may run.

        Raises
        ------
        ClusterError
            If it does not end in time; it is killed then. Also if the node is off.
        """
        argv = self.command_on(node, argv, cwd=cwd, environ=environ)
        return run_bounded(argv, timeout_s=timeout_s)

    def popen_on(
        self,
        node: str,
        argv: Sequence[str],
        *,
        cwd: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        stdout: IO[str] | int | None = None,
        stderr: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on a node and return at once.

        The process returned is a parent of the command, on the host. Both are in a session of
        their own, so ``os.killpg`` with its pid ends both.

        Parameters
        ----------
        node
            ``head`` or a compute node.
        argv
            The command. It reads nothing.
        cwd
            Its working directory, as the node sees it.
        environ
            More variables for it, beside the caller's and `environ`.
        stdout, stderr
            As for `subprocess.Popen`.
        """
        return subprocess.Popen(
            self.command_on(node, argv, cwd=cwd, environ=environ),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def status(self) -> ClusterStatus:
        """Ask the controller for the state of every node."""
        controller_alive = self._is_on(HEAD) and self._controller().process() is not None
        states: dict[str, tuple[str, str]] = {}
        # Without a controller sinfo tries for many seconds.
        if controller_alive:
            states = parse_sinfo(self.run_on(HEAD, SINFO, timeout_s=20).stdout)
        nodes = []
        for node in self.node_names:
            state, reason = states.get(node, ("unknown", ""))
            powered = self._is_on(node)
            nodes.append(
                NodeStatus(
                    name=node,
                    address=self.addresses.of(node),
                    powered=powered,
                    slurmd_alive=powered and self._slurmd(node).process() is not None,
                    state=state,
                    reason=reason,
                )
            )
        return ClusterStatus(controller_alive=controller_alive, nodes=tuple(nodes))

    def wait_for_state(self, node: str, *states: str, timeout_s: float = 60) -> None:
        """Wait until Slurm says that a node is in one of some states.

        Parameters
        ----------
        node
            A compute node.
        states
            Slurm's short words, such as ``idle`` or ``down``, without flags.
        timeout_s
            How long to wait.

        Raises
        ------
        ClusterError
            If it is in none of them within ``timeout_s``.
        """
        wait_until(
            lambda: self.status().of(node).state.rstrip("*~#!%$@^-+") in states,
            what=f"{node} to be {' or '.join(states)}",
            timeout_s=timeout_s,
            log=self.layout.log_file("slurmctld"),
        )

    # ---- breaking and repairing it

    def power_off(self, node: str) -> None:
        """Take the power from a compute node: its processes are gone, nobody is told.

        Slurm notices after some seconds (see `wait_for_state`). Only in mode ``namespaces``.

        Parameters
        ----------
        node
            A compute node.
        """
        self._machines(node).power_off(node)

    def power_on(self, node: str) -> None:
        """Boot a compute node and start its slurmd; Slurm takes it back by itself.

        Only in mode ``namespaces``.

        Parameters
        ----------
        node
            A compute node.
        """
        machines = self._machines(node)
        if self._is_on(node):
            raise ClusterError(f"{node} is on.")
        machines.boot([node])
        self._slurmd(node).start()

    def unplug(self, node: str) -> None:
        """Cut the network of a compute node. Only in mode ``namespaces``.

        Parameters
        ----------
        node
            A compute node.
        """
        self._machines(node).unplug(node)

    def plug(self, node: str) -> None:
        """Restore the network of a compute node. Only in mode ``namespaces``.

        Parameters
        ----------
        node
            A compute node.
        """
        self._machines(node).plug(node)

    def kill_slurmd(self, node: str) -> None:
        """Kill only the slurmd of a node; the tasks of its jobs live on.

        Parameters
        ----------
        node
            A compute node.
        """
        self._slurmd(node).kill()

    def start_slurmd(self, node: str) -> None:
        """Start the slurmd of a node again.

        Parameters
        ----------
        node
            A compute node.
        """
        self._slurmd(node).start()

    def kill_controller(self) -> None:
        """Kill slurmctld as a crash of its machine would."""
        self._controller().kill()

    def start_controller(self) -> None:
        """Start slurmctld again, and wait until it listens."""
        self._controller().start()

    # ---- inside

    def _start(self, database_cache: Path | None, timeout_s: float) -> None:
        write_configuration(self.spec, self.layout, self.addresses)
        if self.spec.mode == "namespaces":
            self._namespaces().boot([HEAD, *self.node_names])
        self._munged().start(timeout_s=timeout_s)
        if self.spec.accounting:
            accounting.start_accounting(
                self._place(HEAD), self.layout, self.addresses, database_cache=database_cache
            )
        self._controller().start(timeout_s=timeout_s)
        for node in self.node_names:
            self._slurmd(node).start(timeout_s=timeout_s)
        wait_until(
            lambda: all(node.state == "idle" for node in self.status().nodes),
            what=f"{self.spec.num_nodes} nodes to be idle",
            timeout_s=timeout_s,
            log=self.layout.log_file("slurmctld"),
        )

    def _end_processes(self) -> None:
        if self.spec.mode == "namespaces":
            self._namespaces().destroy()
            return
        daemons = [self._controller(), *map(self._slurmd, self.node_names), self._munged()]
        if self.spec.accounting:
            head = self._place(HEAD)
            daemons.append(accounting.slurmdbd(head, self.layout, self.addresses))
            daemons.append(accounting.mariadb(head, self.layout))
        for daemon in daemons:
            daemon.kill()
        end_leftovers(self.layout.slurm_conf)

    def _munged(self) -> Daemon:
        layout = self.layout
        return Daemon(
            name="munged",
            argv=(
                *("munged", "--force", f"--key-file={layout.munge_key}"),
                *(f"--socket={layout.munge_socket}", f"--pid-file={layout.pid_file('munged')}"),
                *(f"--log-file={layout.log_file('munged')}", f"--seed-file={layout.run}/seed"),
            ),
            place=self._place(HEAD),
            layout=layout,
        )

    def _controller(self) -> Daemon:
        address, port = self.addresses.head, self.addresses.controller_port
        return Daemon(
            name="slurmctld",
            argv=("slurmctld", "-f", str(self.layout.slurm_conf)),
            place=self._place(HEAD),
            layout=self.layout,
            is_ready=lambda: is_listening(address, port),
        )

    def _slurmd(self, node: str) -> Daemon:
        self._check_node(node)
        return Daemon(
            name=f"slurmd-{node}",
            argv=("slurmd", "-N", node, "-f", str(self.layout.slurm_conf)),
            place=self._place(node),
            layout=self.layout,
        )

    def _place(self, node: str) -> Place:
        environ = {"SLURM_CONF": str(self.layout.slurm_conf)}
        if node != HEAD:
            self._check_node(node)
        if self.spec.mode == "flat":
            return Place(environ={**environ, NODE_VARIABLE: node})
        init = self._namespaces().init_of(node)
        if init is None:
            raise ClusterError(f"{node} is off. Switch it on with power_on first.")
        return Place(init=init, environ=environ)

    def _is_on(self, node: str) -> bool:
        return self.spec.mode == "flat" or self._namespaces().init_of(node) is not None

    def _namespaces(self) -> Namespaces:
        return Namespaces(spec=self.spec, layout=self.layout, addresses=self.addresses)

    def _machines(self, node: str) -> Namespaces:
        self._check_node(node)
        if self.spec.mode == "flat":
            raise ClusterError(
                "The nodes of a flat cluster have neither power nor network of their own. "
                "Use mode='namespaces'."
            )
        return self._namespaces()

    def _check_node(self, node: str) -> None:
        if node not in self.node_names:
            raise ClusterError(f"There is no {node!r}. Use one of {', '.join(self.node_names)}.")
