"""Which address of a node others get to, on ranks that are threads and nodes that are none."""

from __future__ import annotations

import secrets
import socket
import threading

import pytest

from hpctrain.control.interfaces import ipv4_addresses, is_loopback
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.worker.address import Door, find_address, knock
from hpctrain.world import World


def find(comm: ThreadComm, *, num_nodes: int) -> str:
    per_node = comm.size // num_nodes
    world = World(
        attempt=1,
        world_rank=comm.rank,
        world_size=comm.size,
        local_rank=comm.rank % per_node,
        local_world_size=per_node,
        node_rank=comm.rank // per_node,
        num_nodes=num_nodes,
        hostname=socket.gethostname(),
    )
    return find_address(world, comm)


def test_ranks_of_one_node_need_no_network():
    assert run_on_threads(2, lambda comm: find(comm, num_nodes=1)) == ["127.0.0.1"] * 2


def test_ranks_of_several_nodes_get_an_address_that_is_not_loopback():
    outside = {address for address in ipv4_addresses().values() if not is_loopback(address)}
    if not outside:
        pytest.skip("this machine has no network")
    addresses = run_on_threads(6, lambda comm: find(comm, num_nodes=3))
    assert len(set(addresses)) == 1, "the nodes of this test are the same machine"
    assert addresses[0] in outside


def test_an_address_at_which_somebody_else_answers_is_passed_over():
    token = secrets.token_bytes(16)
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with socket.create_server(("127.0.0.3", port)) as right:
            threads = [
                threading.Thread(target=say, args=(other, b"who is there?"), daemon=True),
                threading.Thread(target=say, args=(right, token), daemon=True),
            ]
            for thread in threads:
                thread.start()
            # At the first one nobody listens.
            addresses = ("127.0.0.4", "127.0.0.2", "127.0.0.3")
            door = Door(hostname="node", addresses=addresses, port=port, token=token)
            assert knock(door) == "127.0.0.3"
            for thread in threads:
                thread.join(timeout=10)


def say(listener: socket.socket, content: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(content)


def test_a_node_that_cannot_be_reached_keeps_the_likeliest_address():
    assert knock(Door(hostname="node", addresses=("127.0.0.4",), port=1, token=b"x")) is None
