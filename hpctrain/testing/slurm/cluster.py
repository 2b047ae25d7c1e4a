"""`VirtualCluster`: start, attach to, use, break and stop a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from hpctrain.testing.slurm.addresses import Addresses, pick_addresses
from hpctrain.testing.slurm.components import SEARCH_PATH, check_components
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import DEFAULT_STATE_DIR, Layout
from hpctrain.testing.slurm.parts import Parts
from hpctrain.testing.slurm.processes import run_bounded, wait_until
from hpctrain.testing.slurm.spec import HEAD, ClusterSpec
from hpctrain.testing.slurm.status import ClusterStatus


@dataclass(frozen=True, kw_only=True)
class VirtualCluster:
    """A throw-away Slurm cluster on this machine.

    Made by `start` or `attach`. As a context manager it is stopped at the end. A cluster outlives
    the process that started it. Nodes are called ``node1``, ``node2`` ...; ``head`` is where the
    controller runs. In mode ``flat`` all of these are the host itself.
    """

    parts: Parts

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
        parts = Parts(spec=spec, addresses=addresses, layout=layout)
        # From here on another process can attach and stop, should this one die.
        record = {"spec": spec.to_json(), "number": addresses.number}
        layout.record.write_text(json.dumps(record, indent=2))
        try:
            parts.start(database_cache=database_cache, timeout_s=timeout_s)
        except BaseException as error:
            parts.end_processes()
            layout.remove(keep_logs=True)
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}\nAll logs are kept in {layout.log}.") from error
            raise
        return cls(parts=parts)

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
        return cls(parts=Parts(spec=spec, addresses=addresses, layout=layout))

    def stop(self, *, keep: bool = False) -> None:
        """End everything that runs on the cluster and remove it. Harmless if repeated.

        Parameters
        ----------
        keep
            Leave the state directory for a look at the logs. A later ``stop()`` removes it.
        """
        if not self.layout.state_dir.exists():
            return
        self.parts.end_processes()
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
    def spec(self) -> ClusterSpec:
        """Its requested specification."""
        return self.parts.spec

    @property
    def addresses(self) -> Addresses:
        """Who is where."""
        return self.parts.addresses

    @property
    def layout(self) -> Layout:
        """Which of its files is where."""
        return self.parts.layout

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
        return self.parts.place(node).command(argv, cwd=str(cwd), environ=environ)

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
        node, argv, cwd, environ
            As for `command_on`.
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
        node, argv, cwd, environ
            As for `command_on`. The command reads nothing.
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
        return self.parts.status()

    def wait_for_state(self, node: str, *states: str, timeout_s: float = 60) -> None:
        """Wait until Slurm says that a node is in one of some states.

        Parameters
        ----------
        node
            A compute node.
        *states
            Slurm's short words, such as ``idle`` or ``down``, without flags.
        timeout_s
            How long to wait.

        Raises
        ------
        ClusterError
            If it is in none of them within ``timeout_s``.
        """
        try:
            wait_until(
                lambda: self.status().of(node).state.rstrip("*~#!%$@^-+") in states,
                what=f"{node} to be {' or '.join(states)}",
                timeout_s=timeout_s,
                log=self.layout.log_file("slurmctld"),
            )
        except ClusterError as error:
            raise ClusterError(f"{error}\nNow: {self.status().of(node)}") from error

    # ---- breaking and repairing it

    def power_off(self, node: str) -> None:
        """Take the power from a compute node: its processes are gone without a message.

        Slurm notices after some seconds (see `wait_for_state`). Only in mode ``namespaces``.
        """
        self.parts.machines(node).power_off(node)

    def power_on(self, node: str) -> None:
        """Boot a compute node and start its slurmd; Slurm takes it back by itself.

        Only in mode ``namespaces``.
        """
        machines = self.parts.machines(node)
        if self.parts.is_on(node):
            raise ClusterError(f"{node} is on.")
        machines.boot([node])
        self.parts.slurmd(node).start()

    def unplug(self, node: str) -> None:
        """Cut the network of a compute node. Only in mode ``namespaces``."""
        self.parts.machines(node).unplug(node)

    def plug(self, node: str) -> None:
        """Restore the network of a compute node. Only in mode ``namespaces``."""
        self.parts.machines(node).plug(node)

    def kill_slurmd(self, node: str) -> None:
        """Kill only the slurmd of a node; the tasks of its jobs live on."""
        self.parts.slurmd(node).kill()

    def start_slurmd(self, node: str) -> None:
        """Start the slurmd of a node again."""
        self.parts.slurmd(node).start()

    def kill_controller(self) -> None:
        """Kill slurmctld as a crash of its machine would.

        Slurm writes its state down some seconds late. What happened just before is forgotten after
        `start_controller`: a job that had just ended runs again, a node that had just come back is
        down, until slurmctld asks the nodes a minute later.
        """
        self.parts.controller().kill()

    def start_controller(self) -> None:
        """Start slurmctld again, and wait until it listens."""
        self.parts.controller().start()
