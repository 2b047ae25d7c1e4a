"""Nodes as namespaces: booting, wiring, power and network failures.

::

    host                        head's network namespace              node1's
    hpctrain7 10.213.7.1 ────── host ┐                           ┌─── eth0 10.213.7.11
                                     ├─ eth0 10.213.7.2 (bridge) ┤    node2's
                                node1 ┤                  node2 ──┴─── eth0 10.213.7.12

The bridge is in the head and not on the host, because firewall rules of the host (Docker's, for
one) also filter what passes through a bridge there. All of it disappears with the namespaces.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hpctrain.testing.slurm import memory_cgroups, node_init
from hpctrain.testing.slurm.addresses import Addresses
from hpctrain.testing.slurm.components import SEARCH_PATH
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import Layout
from hpctrain.testing.slurm.processes import ProcessIdentity, run_bounded, tail, wait_until
from hpctrain.testing.slurm.spec import HEAD, ClusterSpec

BOOT_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Namespaces:
    """The head and the nodes of one cluster."""

    spec: ClusterSpec
    layout: Layout
    addresses: Addresses

    def init_of(self, node: str) -> ProcessIdentity | None:
        """Return the pid 1 of a node, if the node is on."""
        return ProcessIdentity.read(self.layout.node_identity(node))

    def boot(self, nodes: Sequence[str]) -> None:
        """Switch nodes on, all at the same time. The head must be on, or the first of them."""
        with ExitStack() as processes:
            booting = [processes.enter_context(self._begin_boot(node)) for node in nodes]
            for node, process in zip(nodes, booting, strict=True):
                self._end_boot(node, process)
        for node in nodes:
            if node == HEAD:
                self._wire_head()
            else:
                self._wire_node(node)

    def power_off(self, node: str) -> None:
        """Cut the power: to the others the node falls silent, as no connection is closed."""
        init = self._living_init_of(node)
        self.unplug(node)
        init.kill()
        wait_until(lambda: not init.is_alive(), what=f"{node} to lose power", timeout_s=10)
        # The kernel removes it too, but perhaps after power_on needs its name.
        self._ip(f"link del {node}", inside=HEAD, check=False)

    def unplug(self, node: str) -> None:
        """Cut the network of a node; its processes live on."""
        self._ip(f"link set {node} down", inside=HEAD)

    def plug(self, node: str) -> None:
        """Restore the network of a node."""
        self._ip(f"link set {node} up", inside=HEAD)

    def destroy(self) -> None:
        """End every process of every node, and with them the network. Harmless if repeated."""
        inits = [init for node in (HEAD, *self.spec.node_names) if (init := self.init_of(node))]
        for init in inits:
            init.kill()
        # pid 1 stays until the last process of its PID namespace is gone.
        wait_until(
            lambda: not any(init.is_alive() for init in inits),
            what="the nodes to lose power",
            timeout_s=20,
        )
        if self.spec.memory_limits:
            memory_cgroups.remove_groups(self.addresses.number, self.spec.node_names)
        # The kernel removes it too, but a moment later.
        if Path("/sys/class/net", self.addresses.interface).exists():
            run_ip(f"link del {self.addresses.interface}", check=False)

    def _begin_boot(self, node: str) -> subprocess.Popen[bytes]:
        init = [sys.executable, "-I", "-S", node_init.__file__, node]
        init += ["--identity", str(self.layout.node_identity(node))]
        init += ["--hosts", str(self.layout.hosts), "--resolver", str(self.layout.resolver)]
        init += ["--state-dir", str(self.layout.state_dir)]
        if self.spec.memory_limits:
            init += ["--memory-cgroups", str(memory_cgroups.HIERARCHY)]
        # The head is where users log in, and they work in the /tmp of the host.
        if self.spec.private_tmp and node != HEAD:
            init += ["--tmp", str(self.layout.state_dir / "tmp" / node)]
            for directory in self.spec.shared:
                init += ["--shared", str(directory)]
        with self.layout.log_file(f"boot-{node}").open("ab") as log:
            return subprocess.Popen(
                [
                    *("env", f"PATH={SEARCH_PATH}"),
                    # The node outlives this process, which therefore must not be its parent.
                    *("setsid", "--fork"),
                    *("unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork"),
                    *init,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _end_boot(self, node: str, process: subprocess.Popen[bytes]) -> None:
        log = self.layout.log_file(f"boot-{node}")
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], BOOT_TIMEOUT_S)[0]:
            raise ClusterError(f"{node} did not boot within {BOOT_TIMEOUT_S:g} s.{tail(log)}")
        # When the node dies, the pipe ends and nothing was read from it.
        if process.stdout.readline() != b"ready\n":
            raise ClusterError(
                f"{node} does not boot. In a container, namespaces need its privileged mode; "
                f"mode='flat' does without.{tail(log)}"
            )

    def _wire_head(self) -> None:
        interface, addresses = self.addresses.interface, self.addresses
        pid = self._living_init_of(HEAD).pid
        run_ip(
            f"link add {interface} type veth peer name host netns {pid}",
            f"addr add {addresses.host}/24 broadcast + dev {interface}",
            f"link set {interface} up",
        )
        self._ip(
            "link set lo up",
            # Without an address of its own a bridge changes it with each port it gets.
            f"link add eth0 address {addresses.mac_of(HEAD)} type bridge",
            "link set host master eth0 up",
            f"addr add {addresses.head}/24 broadcast + dev eth0",
            "link set eth0 up",
            f"route add default via {addresses.host}",
            inside=HEAD,
        )

    def _wire_node(self, node: str) -> None:
        pid, mac = self._living_init_of(node).pid, self.addresses.mac_of(node)
        self._ip(
            f"link add {node} type veth peer name eth0 address {mac} netns {pid}",
            f"link set {node} master eth0 up",
            inside=HEAD,
        )
        self._ip(
            "link set lo up",
            f"addr add {self.addresses.of(node)}/24 broadcast + dev eth0",
            "link set eth0 up",
            # It leads nowhere, but programs find their own address by asking for a route.
            f"route add default via {self.addresses.host}",
            inside=node,
        )

    def _living_init_of(self, node: str) -> ProcessIdentity:
        init = self.init_of(node)
        if init is None:
            raise ClusterError(f"{node} is off. Switch it on with power_on first.")
        return init

    def _ip(self, *commands: str, inside: str, check: bool = True) -> None:
        # Only the network namespace is entered: pids in the commands are the host's.
        enter = ["nsenter", f"--target={self._living_init_of(inside).pid}", "--net", "--"]
        run_ip(*commands, enter=enter, check=check)


def run_ip(*commands: str, enter: Sequence[str] = (), check: bool = True) -> None:
    """Run commands of ip(8) in one go."""
    completed = run_bounded(
        [*enter, "env", f"PATH={SEARCH_PATH}", "ip", "-batch", "-"],
        stdin="\n".join(commands),
        timeout_s=10,
    )
    if check and completed.returncode != 0:
        raise ClusterError(
            "The network of the cluster cannot be changed: ip "
            f"{'; ip '.join(commands)}: {completed.stderr.strip()}"
        )
