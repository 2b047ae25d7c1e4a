"""LightGBM's two networks: its own sockets, and MPI through two callback functions.

``LGBM_NetworkInitWithFunctions`` takes a reduce-scatter and an allgather, so even the wheel of
PyPI, which is built without MPI, can use MPI. LightGBM keeps its network in thread-local variables:
all functions here must run in the thread that trains.
"""

from __future__ import annotations

import ctypes
import math
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpctrain.errors import LaunchError
from hpctrain.gbdt.node_cpus import find_node_cpus
from hpctrain.log import log_traceback
from hpctrain.worker import mpi
from hpctrain.worker.context import get_context

if TYPE_CHECKING:
    from hpctrain.backend import BackendContext
    from hpctrain.worker.mpi import Comm

_REDUCE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32
)  # input, output, size of a value, bytes
_BLOCKS = ctypes.POINTER(ctypes.c_int32)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,  # input
    ctypes.c_int32,
    ctypes.c_int,  # size of a value
    _BLOCKS,  # starts
    _BLOCKS,  # lengths
    ctypes.c_int,
    ctypes.c_void_p,  # output
    ctypes.c_int32,
    ctypes.POINTER(_REDUCE),  # a reference in C++
)
_ALLGATHER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
    _BLOCKS,
    _BLOCKS,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int32,
)

_PORT_ATTEMPTS = 5


def get_network_params() -> dict[str, Any]:
    """Return the parameters that make ``lightgbm.train()`` use all ranks. Not collective.

    Merge them into `params` in a training function. The network is connected already, so they do
    not include ``machines`` or ports. While it is connected, making a ``lightgbm.Dataset`` and
    boosting are collective: every rank must do them, in the same order.
    """
    world_size = get_context().get_world_size()
    if world_size == 1:
        return {}
    return {"num_machines": world_size, "tree_learner": "data", "pre_partition": True}


def wants_sockets(context: BackendContext, network: str) -> bool:
    """Return whether to use sockets, the same on every rank. Collective."""
    if network != "auto":
        return network == "sockets"
    # MPI spins while it waits.
    nodes = find_node_cpus(context.world, context.comm).values()
    return any(node.num_ranks > node.num_cpus for node in nodes)


def connect_by_sockets(context: BackendContext, *, timeout_s: float) -> None:
    """Connect LightGBM's ranks over TCP. Collective.

    Raises
    ------
    LaunchError
        If they cannot connect.
    """
    from lightgbm.basic import LightGBMError

    world = context.world
    for attempt in range(_PORT_ATTEMPTS):
        # LightGBM takes a port number. Another process may bind a free port before LightGBM does.
        port = _free_port()
        address = (context.reachable_address(), port)
        addresses = context.comm.allgather(address)
        try:
            _initialise(addresses, port, timeout_s=timeout_s)
        except LightGBMError as error:
            problem = str(error)
        else:
            problem = ""
        problems = context.comm.allgather(problem)
        if not any(problems):
            return
        _free()
        rank = next(rank for rank, said in enumerate(problems) if said)
        if "inding port" not in problems[rank] or attempt + 1 == _PORT_ATTEMPTS:
            host, port = addresses[rank]
            raise LaunchError(
                f"LightGBM cannot connect rank {rank} of {world.world_size} at {host}:{port}: "
                f"{problems[rank]}. Compute nodes must reach each other over TCP, on any port; or "
                f"set LightGBMConfig(network='mpi')."
            )


def connect_by_mpi(comm: Comm) -> Callable[[], None]:
    """Connect LightGBM's ranks over MPI. Collective.

    Returns
    -------
    Callable
        Disconnects. It also keeps a reference to the functions that LightGBM calls.
    """
    from lightgbm.basic import _safe_call

    reduce_scatter = _REDUCE_SCATTER(_ending_all(_reduce_scatter(comm)))
    allgather = _ALLGATHER(_ending_all(_allgather(comm)))
    _safe_call(
        shared_library().LGBM_NetworkInitWithFunctions(
            ctypes.c_int(comm.size), ctypes.c_int(comm.rank), reduce_scatter, allgather
        )
    )

    def disconnect(_alive: tuple[Any, ...] = (reduce_scatter, allgather)) -> None:
        _free()

    return disconnect


def disconnect_sockets() -> None:
    """Close LightGBM's connections. Not collective."""
    _free()


def _reduce_scatter(comm: Comm) -> Callable[..., None]:
    size, rank = comm.size, comm.rank
    room = bytearray()

    def reduce_scatter(
        given: int,
        given_size: int,
        value_size: int,
        starts: Any,
        lengths: Any,
        num_blocks: int,
        output: int,
        output_size: int,
        reducer: Any,
    ) -> None:
        nonlocal room
        length = lengths[rank]
        if len(room) < length * size:
            room = bytearray(length * size)
        mpi.exchange_bytes(
            comm,
            _view(given, given_size),
            room,
            lengths=lengths[:size],
            starts=starts[:size],
        )
        if not length:
            return
        place = ctypes.addressof(ctypes.c_char.from_buffer(room))
        ctypes.memmove(output, place, length)
        # Reduce in the order of ranks, so that sums have the same bits on any rank.
        for other in range(1, size):
            reducer[0](place + other * length, output, value_size, length)

    return reduce_scatter


def _allgather(comm: Comm) -> Callable[..., None]:
    size = comm.size

    def allgather(
        given: int,
        given_size: int,
        starts: Any,
        lengths: Any,
        num_blocks: int,
        output: int,
        output_size: int,
    ) -> None:
        # Copy: LightGBM's input may overlap its output, which MPI does not allow.
        mpi.allgather_bytes(
            comm,
            ctypes.string_at(given, given_size),
            _view(output, output_size),
            lengths=lengths[:size],
            starts=starts[:size],
        )

    return allgather


def _view(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _ending_all(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that aborts all ranks if it fails: C++ cannot catch its exception."""

    def call(*arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            log_traceback(error)
            mpi.abort()

    return call


def _initialise(addresses: list[tuple[str, int]], port: int, *, timeout_s: float) -> None:
    from lightgbm.basic import _c_str, _safe_call

    machines = ",".join(f"{host}:{number}" for host, number in addresses)
    _safe_call(
        shared_library().LGBM_NetworkInit(
            _c_str(machines),
            ctypes.c_int(port),
            ctypes.c_int(math.ceil(timeout_s / 60)),
            ctypes.c_int(len(addresses)),
        )
    )


def shared_library() -> Any:
    """Return LightGBM's library, for functions that its package does not wrap. Not collective."""
    from lightgbm import basic

    return vars(basic)["_LIB"]


def _free() -> None:
    from lightgbm.basic import _safe_call

    _safe_call(shared_library().LGBM_NetworkFree())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port
