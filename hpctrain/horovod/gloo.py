"""Where Gloo's ranks find each other: a rendezvous server in rank 0, and what points to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection
from typing import Any

from hpctrain import environ
from hpctrain.backend import BackendContext
from hpctrain.control.interfaces import ipv4_addresses
from hpctrain.errors import ConfigError
from hpctrain.horovod.config import HorovodConfig
from hpctrain.horovod.rounds import Rounds


class Rendezvous:
    """Horovod's rendezvous server, which runs in rank 0.

    It is not authenticated, and listens at one address only, on a port that the kernel chooses.

    Parameters
    ----------
    address
        Where it listens; on all interfaces if this node does not have that address itself.
    places
        What `place_variables` says of each rank, by world rank.
    rounds
        Who gets which rank in an elastic run; None: the world is what it is.
    """

    def __init__(
        self, address: str, places: Sequence[Mapping[str, str]], rounds: Rounds | None
    ) -> None:
        from horovod.runner.common.util.hosts import SlotInfo

        def slots(ranks: Sequence[int]) -> list[Any]:
            return [
                SlotInfo(
                    hostname=place["HOROVOD_HOSTNAME"],
                    rank=rank,
                    **{
                        name: int(place[f"HOROVOD_{name.upper()}"])
                        for name in ("local_rank", "cross_rank", "size", "local_size", "cross_size")
                    },
                )
                for rank, place in zip(ranks, places, strict=True)
            ]

        self._server = _server_at(address)
        if rounds is None:
            self.port: int = self._server.start()
            self._server.init(slots(range(len(places))))
            return
        # What was stored for the ranks of the last round must not be found by those of this one.
        rounds.on_round = lambda ranks: self._server.init(slots(ranks))
        keys = [f"{p['HOROVOD_HOSTNAME']}:{p['HOROVOD_LOCAL_RANK']}" for p in places]
        self.port = self._server.start(_elastic_handler(rounds, keys, slots))

    def stop(self) -> None:
        """End it."""
        self._server.stop()


def place_variables(context: BackendContext) -> list[dict[str, str]]:
    """Return by which variables Horovod knows where each rank stands. Collective."""
    world = context.world
    standing = context.comm.allgather((world.node_rank, world.local_rank, world.local_world_size))
    places = []
    for rank, (node, local_rank, local_size) in enumerate(standing):
        # Horovod's cross ranks: those with the same local rank, one a node.
        alike = sorted(n for n, other, _ in standing if other == local_rank)
        places.append(
            {
                "HOROVOD_HOSTNAME": f"node{node}",
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(world.world_size),
                "HOROVOD_LOCAL_RANK": str(local_rank),
                "HOROVOD_LOCAL_SIZE": str(local_size),
                "HOROVOD_CROSS_RANK": str(alike.index(node)),
                "HOROVOD_CROSS_SIZE": str(len(alike)),
            }
        )
    return places


def network_variables(
    context: BackendContext, host: str, port: int, config: HorovodConfig
) -> dict[str, str]:
    """Return by which variables Gloo is told of the network. Not collective.

    Raises
    ------
    ConfigError
        If this node has none of the interfaces that it is to use.
    """
    interfaces = ipv4_addresses()
    if config.nics is None:
        usable = [name for name, own in interfaces.items() if own == context.reachable_address()]
    else:
        usable = [nic for nic in config.nics if nic in interfaces]
        if not usable:
            raise ConfigError(
                f"HorovodConfig(nics={list(config.nics)!r}), but {context.world.hostname} has only "
                f"{', '.join(sorted(interfaces))}. Name one of them for each node, or leave nics "
                f"out."
            )
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(config.gloo_timeout_s)),
        # Without one Gloo listens where the host's own name says.
        **({"HOROVOD_GLOO_IFACE": usable[0]} if usable else {}),
    }


def ask_rendezvous(method: str, path: str, *, timeout_s: float | None) -> str:
    """Return what the rendezvous server answers, which the environment names. Not collective."""
    host = environ.variable("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = environ.variable("HOROVOD_GLOO_RENDEZVOUS_PORT")
    connection = HTTPConnection(f"{host}:{port}", timeout=timeout_s)
    try:
        connection.request(method, path, body=b"" if method == "PUT" else None)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _server_at(address: str) -> Any:
    """Return Horovod's server, which by itself listens on all interfaces."""
    from horovod.runner.http.http_server import (
        RendezvousHandler,
        RendezvousHTTPServer,
        RendezvousServer,
    )
    from horovod.runner.util.threads import in_thread

    host = address if address in ipv4_addresses().values() else ""

    class Server(RendezvousServer):  # type: ignore[misc]
        def start(self, handler: Any = RendezvousHandler) -> int:
            self._httpd = RendezvousHTTPServer((host, 0), handler, self._verbose)
            self._listen_thread = in_thread(target=self._httpd.serve_forever)
            port: int = self._httpd.server_address[1]
            return port

    return Server()


def _elastic_handler(rounds: Rounds, keys: Sequence[str], slots: Any) -> type[Any]:
    from horovod.runner.http.http_server import RendezvousHandler

    class Handler(RendezvousHandler):  # type: ignore[misc]
        """Answers who asks for a rank when a round begins; keepers say what became of workers."""

        def _get_value(self, scope: str, key: str) -> Any:
            if scope != "rank_and_size":
                return super()._get_value(scope, key)
            ranks = rounds.ask(keys.index(key))
            if ranks is None:
                # As Horovod says that a host is not wanted any more.
                return b"-1,-1,-1,-1,-1,-1"
            return slots(ranks)[keys.index(key)].to_response_string().encode()

        def _put_value(self, scope: str, key: str, value: Any) -> None:
            if scope == "replaced":
                rounds.replace(int(key))
            elif scope == "finished":
                rounds.finish(int(key))
            else:
                super()._put_value(scope, key, value)

    return Handler
