"""What Gloo's ranks are told of where they stand, and of the network."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain import ConfigError
from hpctrain.backend import BackendContext
from hpctrain.horovod import HorovodConfig
from hpctrain.horovod.gloo import network_variables, place_variables
from hpctrain.testing.thread_comm import run_on_threads
from hpctrain.world import Communicator, SerialComm, World


def context_of(
    comm: Communicator, *, node_rank: int = 0, local_rank: int = 0, local_world_size: int = 1
) -> BackendContext:
    return BackendContext(
        world=World(
            attempt=1,
            world_rank=comm.rank,
            world_size=comm.size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            node_rank=node_rank,
            num_nodes=2,
            hostname="here",
        ),
        comm=comm,
        cpus_per_worker=1,
        gpu_ids=(),
        visible_gpu_ids=(),
        address="127.0.0.1",
    )


def test_ranks_of_unlike_nodes_know_their_places() -> None:
    def places(comm: Communicator) -> list[dict[str, str]]:
        node_rank, local_rank = ((0, 0), (0, 1), (1, 0))[comm.rank]
        context = context_of(
            comm, node_rank=node_rank, local_rank=local_rank, local_world_size=2 - node_rank
        )
        return place_variables(context)

    everywhere = run_on_threads(3, places)
    assert everywhere[0] == everywhere[1] == everywhere[2]
    assert [tuple(place.values()) for place in everywhere[0]] == [
        # hostname, rank, size, local rank and size, cross rank and size
        ("node0", "0", "3", "0", "2", "0", "2"),
        ("node0", "1", "3", "1", "2", "0", "1"),
        ("node1", "2", "3", "0", "1", "1", "2"),
    ]


def interface(**config: Any) -> str:
    told = network_variables(context_of(SerialComm()), "10.0.0.1", 7, HorovodConfig(**config))
    assert told["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert told["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "30"
    return told["HOROVOD_GLOO_IFACE"]


def test_gloo_uses_the_interface_at_which_others_reach_the_node_or_the_one_that_was_named() -> None:
    assert interface() == "lo"
    assert interface(nics=["eth77", "lo"]) == "lo"
    with pytest.raises(ConfigError, match=r"nics=\['eth77'\].*here has only .*lo"):
        interface(nics=["eth77"])
    with pytest.raises(ConfigError, match="It is a list of strings"):
        HorovodConfig(nics="eth0")
