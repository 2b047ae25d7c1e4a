"""The address at which other nodes reach this one, found out by trying.

What a node knows of itself is not enough. Its own name may stand for a loopback address there, as
Debian's 127.0.1.1; it may have networks that the other nodes are not in; and some addresses, that
of Docker's bridge for one, are the same on every node. So each node listens for a moment, and the
next one connects to it and reports which address it reached.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hpctrain import timeouts
from hpctrain.control.interfaces import LOOPBACK, address_of_name, ipv4_addresses, is_loopback
from hpctrain.world import Communicator, World

_BACKLOG = 4096


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where a node listens."""

    hostname: str
    addresses: tuple[str, ...]
    port: int
    token: bytes
    """What it sends to a peer that connects."""


def find_address(world: World, comm: Communicator) -> str:
    """Return an address of this node, in numbers, that other nodes can connect to.

    Collective. It takes milliseconds; where a firewall swallows what is sent, three seconds for
    each address of a node. If nothing gets through, it is the address that is most likely.
    """
    if world.num_nodes == 1:
        return LOOPBACK
    with ExitStack() as stack:
        leads = world.local_rank == 0
        own = (world.node_rank, stack.enter_context(_open_door())) if leads else None
        doors: dict[int, Door] = dict(filter(None, comm.allgather(own)))
        next_node = (world.node_rank + 1) % world.num_nodes
        found = (next_node, knock(doors[next_node])) if leads else None
        reached: dict[int, str | None] = dict(filter(None, comm.allgather(found)))
    mine = doors[world.node_rank]
    return reached[world.node_rank] or next(iter(mine.addresses), mine.hostname)


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens on the interface of this node with an address. Not collective.

    Parameters
    ----------
    address
        What `find_address` returns. If this node does not have it (others reach this node through
        a gateway, or by its name only), the socket listens on all interfaces.
    """
    host = address if address in ipv4_addresses().values() else ""
    return socket.create_server((host, 0), backlog=_BACKLOG)


def knock(door: Door) -> str | None:
    """Return the first address at which a node answers, None if there is none. Not collective.

    What the node's name stands for here is tried first.
    """
    named = address_of_name(door.hostname)
    for address in sorted(door.addresses, key=lambda address: address != named):
        try:
            with socket.create_connection(
                (address, door.port), timeouts.ADDRESS_TRIAL_S
            ) as connection:
                if connection.recv(len(door.token)) == door.token:
                    return address
        except OSError:
            continue
    return None


@contextmanager
def _open_door() -> Iterator[Door]:
    hostname, token = socket.gethostname(), os.urandom(16)
    addresses = [address_of_name(hostname), *ipv4_addresses().values()]
    with socket.create_server(("", 0)) as listener:
        answering = threading.Thread(
            target=_answer, args=(listener, token), name="hpctrain-address", daemon=True
        )
        answering.start()
        try:
            yield Door(
                hostname=hostname,
                addresses=tuple(dict.fromkeys(a for a in addresses if a and not is_loopback(a))),
                port=listener.getsockname()[1],
                token=token,
            )
        finally:
            # Unlike close(), this wakes who waits in accept().
            listener.shutdown(socket.SHUT_RDWR)
            answering.join(timeout=timeouts.ADDRESS_TRIAL_S)


def _answer(listener: socket.socket, token: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(token)
        except ConnectionError:
            continue
        except OSError:
            return
