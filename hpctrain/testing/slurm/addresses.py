"""Addresses and ports of one cluster, which no other cluster on the machine uses.

In mode ``namespaces`` cluster *k* owns the network 10.213.k.0/24: the host is .1, the head .2,
node1 .11, node2 .12 and so on, and all use Slurm's usual ports. In mode ``flat`` everything is on
127.0.0.1, and the cluster owns a block of ports.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from hpctrain.testing.slurm.components import SEARCH_PATH
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.processes import run_bounded
from hpctrain.testing.slurm.spec import HEAD, MAX_NUM_NODES, ClusterSpec

# Below 32768, where Linux begins to hand out ports to clients.
_PORT_BLOCKS = range(20000, 32000, MAX_NUM_NODES + 50)
_NETWORK_NUMBERS = range(1, 255)


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Who is where. ``number`` is the *k* of the network, or the first port of the block."""

    spec: ClusterSpec
    number: int

    @property
    def interface(self) -> str:
        """The one network interface that the host gets."""
        return f"hpctrain{self.number}"

    @property
    def host(self) -> str:
        """Address of the host in the cluster's network."""
        return f"10.213.{self.number}.1"

    @property
    def head(self) -> str:
        """Address of the controller."""
        return self.of(HEAD)

    @property
    def head_name(self) -> str:
        """Host name of the controller's machine."""
        return HEAD if self.spec.mode == "namespaces" else host_name()

    def of(self, node: str) -> str:
        """Return the address of the head or of a node."""
        if self.spec.mode == "flat":
            return "127.0.0.1"
        last = 2 if node == HEAD else 11 + self.spec.node_names.index(node)
        return f"10.213.{self.number}.{last}"

    def mac_of(self, node: str) -> str:
        """Return the hardware address of a node, which stays the same when it is booted again.

        With a new one, the others would send to the old one until their ARP entry expires.
        """
        return "02:00:" + ":".join(f"{int(byte):02x}" for byte in self.of(node).split("."))

    @property
    def controller_port(self) -> int:
        """Port of slurmctld."""
        return 6817 if self.spec.mode == "namespaces" else self.number

    @property
    def accounting_port(self) -> int:
        """Port of slurmdbd."""
        return 6819 if self.spec.mode == "namespaces" else self.number + 1

    def slurmd_port(self, node: str) -> int:
        """Port of the slurmd of a node."""
        if self.spec.mode == "namespaces":
            return 6818
        return self.number + 10 + self.spec.node_names.index(node)


def host_name() -> str:
    """Return the host name of this machine without its domain."""
    return socket.gethostname().partition(".")[0]


def pick_addresses(spec: ClusterSpec) -> Addresses:
    """Return addresses that nothing on this machine uses now."""
    # In random order, so that two clusters which start at the same time hardly pick the same.
    numbers = _NETWORK_NUMBERS if spec.mode == "namespaces" else _PORT_BLOCKS
    candidates = [
        Addresses(spec=spec, number=number) for number in random.sample(numbers, len(numbers))
    ]
    if spec.mode == "namespaces":
        show = ["env", f"PATH={SEARCH_PATH}", "ip", "-4", "route", "show", "table", "all"]
        routes = run_bounded(show, timeout_s=10).stdout
        free = (one for one in candidates if f" 10.213.{one.number}." not in f" {routes}")
    else:
        free = (one for one in candidates if _can_bind(one))
    try:
        return next(free)
    except StopIteration:
        raise ClusterError(
            "All networks 10.213.k.0/24 are in use. Stop a cluster."
            if spec.mode == "namespaces"
            else f"No block of ports in {_PORT_BLOCKS} is free. Stop a cluster."
        ) from None


def _can_bind(addresses: Addresses) -> bool:
    ports = {addresses.controller_port, addresses.accounting_port}
    ports |= {addresses.slurmd_port(node) for node in addresses.spec.node_names}
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
