"""The connections of ranks that the user has started with rank 0: one a node, not one a rank.

Ranks connect to a unix socket of their node. On rank 0's node its coordinator listens there itself;
on each other node local rank 0 does, and passes the frames of all of them on, over one TCP
connection.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.control import local_socket
from hpctrain.control.link import LinkTimeoutError, connect_tcp
from hpctrain.control.proof import Credentials
from hpctrain.errors import LaunchError
from hpctrain.execute.rank_relay import BACKLOG, RankRelay
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal


@dataclass(frozen=True, kw_only=True)
class CoordinatorAddress:
    """Where the ranks of an attempt reach the coordinator, a thread of rank 0."""

    socket_name: str
    """What the names of the nodes' sockets begin with."""
    addresses: list[str]
    """For other nodes: ``host:port``, in the order in which they are tried."""
    secret: bytes
    """What both ends of a TCP connection prove who they are with."""

    def socket_of(self, node_rank: int) -> str:
        """Return the name of a node's socket, also where nodes share a machine. Not collective."""
        return f"{self.socket_name}-{node_rank}"


class NodeRelay:
    """A relay for the ranks of this node, in a thread of one of them.

    Other ranks of the node find it as soon as it is made.

    Parameters
    ----------
    coordinator
        Where rank 0's listens.
    credentials
        What this end and rank 0 know.
    world
        Where this rank stands.

    Raises
    ------
    LaunchError
        If rank 0 cannot be reached.
    """

    def __init__(
        self, coordinator: CoordinatorAddress, credentials: Credentials, world: World
    ) -> None:
        listener = local_socket.listen(coordinator.socket_of(world.node_rank), backlog=BACKLOG)
        try:
            uplink, seal = connect_to_rank_0(coordinator, credentials)
        except BaseException:
            listener.close()
            raise
        self._relay = _RelayInRank(
            attempt=world.attempt, uplink=uplink, seal=seal, name=world.hostname
        )
        # A child of this rank (a DataLoader worker) must not keep the connections open.
        os.register_at_fork(after_in_child=self._relay.close_in_child)
        self._thread = threading.Thread(
            target=self._relay.serve, args=(listener,), name="hpctrain-rank-relay", daemon=True
        )
        self._thread.start()

    def join(self, *, timeout_s: float) -> None:
        """Wait until rank 0 has closed the connection: every rank has left. Not collective."""
        self._thread.join(timeout_s)


class _RelayInRank(RankRelay):
    """A relay whose process can fork."""

    def close_in_child(self) -> None:
        """Close what a child has inherited. The relay's own descriptors are its parent's."""
        if self._uplink.fileno() < 0:
            return
        # Not unregistered: the child shares the epoll with its parent.
        self._end()


def connect_to_rank_0(
    coordinator: CoordinatorAddress,
    credentials: Credentials,
    *,
    timeout_s: float = timeouts.EXECUTOR_CONNECTION_S,
) -> tuple[socket.socket, Seal]:
    """Connect to rank 0 over TCP. Not collective.

    Raises
    ------
    LaunchError
        If it does not answer in time.
    """
    try:
        return connect_tcp(coordinator.addresses, credentials, timeout_s=timeout_s)
    except LinkTimeoutError as error:
        raise LaunchError(str(error)) from error


def connect_rank(
    coordinator: CoordinatorAddress, credentials: Credentials, world: World
) -> tuple[socket.socket, Seal | None]:
    """Connect to what listens on this node, which is there already. Not collective.

    Returns
    -------
    tuple
        The connection, and the MACs of its frames; None where the kernel identifies the other end.

    Raises
    ------
    LaunchError
        If rank 0 does not answer in time.
    """
    try:
        return local_socket.connect(coordinator.socket_of(world.node_rank), timeout_s=0.0), None
    except LinkTimeoutError:
        # Abstract names belong to a network namespace: containers that share memory, which makes
        # them one node for MPI, can have a network each.
        return connect_to_rank_0(coordinator, credentials)
