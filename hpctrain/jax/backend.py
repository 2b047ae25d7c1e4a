"""The backend: JAX's distributed runtime over the ranks that MPI brought together."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.backend import Backend, BackendContext
from hpctrain.control.interfaces import ipv4_addresses
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.jax import process

if TYPE_CHECKING:
    from hpctrain.jax.config import JaxConfig

# Those that gRPC reads.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


class JaxBackend(Backend):
    """Makes one world of all ranks' devices: JAX's process is the MPI rank."""

    _options: dict[str, Any] | None = None
    """Options of JAX that were changed, with the values from before."""
    _had_computed = False

    def on_start(self, context: BackendContext, config: JaxConfig) -> None:
        """Choose this rank's devices, and connect the ranks. Collective.

        Raises
        ------
        ConfigError
            If jax is missing, has been used in this process already, or sees no GPU where workers
            have one.
        LaunchError
            If a rank cannot connect to rank 0.
        """
        jax = process.import_jax()
        if jax.distributed.is_initialized():
            raise ConfigError(
                "jax.distributed is initialized already. A JaxTrainer does it for its training "
                "function: leave jax.distributed.initialize() out of the script."
            )
        world = context.world
        if world.world_size > 1 and process.computes_already():
            raise ConfigError(
                f"JAX has computed in this process, or listed its devices, before the training "
                f"function, and cannot make one world of {world.world_size} ranks' devices any "
                f"more. Do it in the training function, and let that take no JAX array along."
            )
        # PJRT's name for the number of threads that the CPU computes with.
        context.export(PJRT_NPROC=str(context.cpus_per_worker))
        self._had_computed = process.computes_already()
        self._options = process.use_devices(context.gpu_indices)
        if world.world_size > 1:
            _connect(context, config)
        if context.gpu_ids:
            _check_gpus(context)

    def on_shutdown(self, context: BackendContext, config: JaxConfig) -> None:
        """Disconnect the ranks. Collective."""
        jax = process.import_jax()
        # Nobody may still compute together with others when the first leaves.
        context.comm.barrier()
        if context.world.world_size > 1:
            jax.distributed.shutdown()

    def release(self) -> None:
        """Give JAX its options back; it chooses its devices afresh if it may. Not collective.

        A world of several ranks that failed is left alone: to leave it waits for the others.
        """
        if self._options is None:
            return
        jax = process.import_jax()
        for name, value in self._options.items():
            jax.config.update(name, value)
        if not self._had_computed and not jax.distributed.is_initialized():
            import_module("jax.extend.backend").clear_backends()


def _connect(context: BackendContext, config: JaxConfig) -> None:
    import jax

    world = context.world
    held, address = None, ("", 0)
    if world.world_rank == 0:
        held = _hold_port(context.reachable_address())
        address = (context.reachable_address(), held.getsockname()[1])
    host, port = context.comm.bcast(address)
    try:
        with _no_proxy(host):
            jax.distributed.initialize(
                f"{host}:{port}",
                num_processes=world.world_size,
                process_id=world.world_rank,
                # By itself it listens on all interfaces.
                coordinator_bind_address=None if held is None else _address_of(held),
                # JAX would look for Slurm's variables, and choose by them.
                cluster_detection_method="deactivate",
                initialization_timeout=math.ceil(config.connect_timeout_s),
            )
    except RuntimeError as error:
        raise LaunchError(
            f"rank {world.world_rank} on {world.hostname} cannot join JAX's coordinator on rank 0 "
            f"at {host}:{port} within {config.connect_timeout_s:g} s: "
            f"{str(error).splitlines()[0]} Compute nodes must reach each other over TCP, on any "
            f"port; ask the site whether a firewall is between them. "
            f"JaxConfig(connect_timeout_s=...) sets how long to wait."
        ) from error
    finally:
        if held is not None:
            held.close()


def _hold_port(address: str) -> socket.socket:
    """Return a socket that has a port of this machine, until JAX's coordinator listens on it.

    JAX takes a number and not a socket. But gRPC shares its ports (SO_REUSEPORT): with a socket
    that never listens, and of this user. To everybody else the port is taken.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # On all interfaces if other nodes reach this one at an address that it does not have itself.
    held.bind((address if address in ipv4_addresses().values() else "", 0))
    return held


def _address_of(held: socket.socket) -> str:
    host, port = held.getsockname()
    return f"{host}:{port}"


@contextmanager
def _no_proxy(host: str) -> Iterator[None]:
    """Keep gRPC from asking a web proxy, which many sites set, for another node."""
    if not any(environ.variable(name) for name in _PROXIES):
        yield
        return
    before = environ.variable("no_grpc_proxy")
    others = before or environ.variable("no_proxy")
    environ.export({"no_grpc_proxy": f"{others},{host}" if others else host})
    try:
        yield
    finally:
        environ.export({"no_grpc_proxy": before})


def _check_gpus(context: BackendContext) -> None:
    import jax

    devices = jax.local_devices()
    if devices[0].platform != "gpu" or len(devices) != len(context.gpu_ids):
        raise ConfigError(
            f"use_gpu=True, and this rank on {context.world.hostname} has the GPUs "
            f"{','.join(context.gpu_ids)} of CUDA_VISIBLE_DEVICES="
            f"{','.join(context.visible_gpu_ids)}, but jax {jax.__version__} computes on "
            f"{devices}. Install JAX for them (pip install 'jax[cuda13]', for older drivers "
            f"'jax[cuda12]'), leave JAX_PLATFORMS unset, or set use_gpu=False."
        )
