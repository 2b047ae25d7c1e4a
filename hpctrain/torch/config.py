"""`TorchConfig` and its backend: torch.distributed on the ranks that MPI brought together."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hpctrain.backend import Backend, BackendConfig, BackendContext
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import TCPStore


@dataclass(frozen=True, kw_only=True)
class TorchConfig(BackendConfig):
    """How torch.distributed is set up."""

    backend: str | None = None
    """``nccl``, ``gloo``, or whatever else this torch has. None: nccl where workers have GPUs,
    gloo otherwise."""
    timeout_s: float = 1800
    """Seconds after which a collective gives up."""

    def __post_init__(self) -> None:
        """Check every field."""
        if self.timeout_s <= 0:
            raise ConfigError(f"TorchConfig(timeout_s={self.timeout_s}): seconds, more than 0.")

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        return TorchBackend


class TorchBackend(Backend):
    """Sets a process group up, and what third-party code reads to find it."""

    _store: TCPStore | None = None

    def on_start(self, context: BackendContext, config: TorchConfig) -> None:
        """Make the process group. Collective.

        Rank 0 binds a store to a port that the kernel chooses and MPI tells the others: no port is
        picked by hand, and nothing can take it in between. The store is not authenticated: whoever
        reaches the node's network can speak to it.
        """
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import torch: {error}. Install it where the workers run: pip "
                f"install 'hpctrain[torch]'."
            ) from error
        torch.set_num_threads(context.cpus_per_worker)
        world = context.world
        timeout = timedelta(seconds=config.timeout_s)
        store = None
        address = ("", 0)
        if world.world_rank == 0:
            store = distributed.TCPStore(
                "0.0.0.0",
                0,
                world.world_size,
                is_master=True,
                wait_for_workers=False,
                timeout=timeout,
            )
            address = (_reachable_address(world.num_nodes), store.port)
        host, port = context.comm.bcast(address)
        if store is None:
            store = distributed.TCPStore(host, port, world.world_size, timeout=timeout)
        context.export(
            MASTER_ADDR=host,
            MASTER_PORT=str(port),
            RANK=str(world.world_rank),
            WORLD_SIZE=str(world.world_size),
            LOCAL_RANK=str(world.local_rank),
            LOCAL_WORLD_SIZE=str(world.local_world_size),
            GROUP_RANK=str(world.node_rank),
            NODE_RANK=str(world.node_rank),
        )
        if context.gpu_ids:
            torch.cuda.set_device(context.visible_gpu_ids.index(context.gpu_ids[0]))
        name = config.backend or ("nccl" if context.gpu_ids else "gloo")
        distributed.init_process_group(
            name, store=store, rank=world.world_rank, world_size=world.world_size, timeout=timeout
        )
        self._store = store

    def on_shutdown(self, context: BackendContext, config: TorchConfig) -> None:
        """Take the process group down. Collective."""
        from torch import distributed

        if distributed.is_initialized():
            # The store lives in rank 0: nobody may still need it when that leaves.
            context.comm.barrier()
            distributed.destroy_process_group()
        self._store = None


def _reachable_address(num_nodes: int) -> str:
    """Return an address of this node that the other ranks can connect to."""
    if num_nodes == 1:
        return "127.0.0.1"
    return socket.gethostbyname(socket.gethostname())
