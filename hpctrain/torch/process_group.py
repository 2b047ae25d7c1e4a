"""The backend: a process group over the ranks that MPI brought together."""

from __future__ import annotations

import socket
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain import environ, timeouts
from hpctrain.backend import Backend, BackendContext
from hpctrain.control.interfaces import LOOPBACK, address_of_name, ipv4_addresses
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.worker.address import listen_at
from hpctrain.worker.context import active_worker
from hpctrain.worker.flight_recorder import record_with
from hpctrain.worker.profiling import profile_with
from hpctrain.worker.step_times import time_steps_with

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from hpctrain.torch.config import TorchConfig
    from hpctrain.torch.separate_models import SeparateModelsWatch
    from hpctrain.torch.step_profiler import TorchStepProfiler
    from hpctrain.torch.step_times import StepClock

_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# torch's own: "0" if env:// is not to use the store of libuv.
_LIBUV = "USE_LIBUV"
_LOCALHOST = "localhost"


class TorchBackend(Backend):
    """Sets a process group up, and what third-party code reads to find it."""

    _store: TCPStore | None = None
    _num_threads: int | None = None
    """Of torch, before the process group was set up."""
    _is_alone = False
    _watch: SeparateModelsWatch | None = None
    _profiler: TorchStepProfiler | None = None
    _clock: StepClock | None = None

    def on_start(self, context: BackendContext, config: TorchConfig) -> None:
        """Make the process group. Collective.

        Rank 0 binds a store to a port that the kernel chooses and MPI tells the others: no port is
        picked by hand, and nothing can take it in between. The store is not authenticated, so it
        listens at the one address that the ranks use: a loopback address where they are on one
        node.

        Raises
        ------
        ConfigError
            If torch is missing, sees no GPU where workers have one, or has a process group already.
        LaunchError
            If a rank cannot connect to rank 0.
        """
        try:
            import torch
            from torch import distributed

            from hpctrain.torch import order
            from hpctrain.torch.flight_recorder import read_groups
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import torch: {error}. Install it where the workers run: pip "
                f"install 'hpctrain[torch]'."
            ) from error
        if distributed.is_initialized():
            raise ConfigError(
                "torch.distributed has a process group already. A TorchTrainer makes one for its "
                "training function: leave init_process_group() out of the script."
            )
        device = _select_device(context)
        world = context.world
        timeout = timedelta(seconds=config.timeout_s)
        self._store, address = _open_store(context, timeout)
        context.export(
            **{
                **_gloo_interface(context),
                **_flight_recorder(),
                **address,
                "RANK": str(world.world_rank),
                "WORLD_SIZE": str(world.world_size),
                "LOCAL_RANK": str(world.local_rank),
                "LOCAL_WORLD_SIZE": str(world.local_world_size),
                "GROUP_RANK": str(world.node_rank),
                "NODE_RANK": str(world.node_rank),
                # accelerate takes the GPU of the local rank's number without it.
                "ACCELERATE_TORCH_DEVICE": device,
                **_accelerate_on_cpus(context),
                **self.variables(context, config),
            }
        )
        self._num_threads, self._is_alone = torch.get_num_threads(), world.world_size == 1
        torch.set_num_threads(context.cpus_per_worker)
        distributed.init_process_group(
            config.backend or ("nccl" if context.gpu_ids else "gloo"),
            # A group that other code makes with env:// uses the same store, not the same keys.
            store=distributed.PrefixStore("hpctrain", self._store),
            rank=world.world_rank,
            world_size=world.world_size,
            timeout=timeout,
        )
        if world.world_size > 1:
            record_with(read_groups)
            order.compare_through(distributed.PrefixStore("hpctrain-orders", self._store))

    def on_training_start(self, context: BackendContext, config: TorchConfig) -> None:
        """Be ready to profile, time steps, and watch whether ranks train one model.

        Not collective.
        """
        from hpctrain.torch.step_profiler import TorchStepProfiler
        from hpctrain.torch.step_times import StepClock

        self._profiler = TorchStepProfiler()
        profile_with(self._profiler)
        if context.world.world_size > 1:
            self._clock = StepClock(context.world.world_size)
            time_steps_with(self._clock.read)
        if context.world.world_size > 1 and self._store is not None:
            from torch import distributed

            from hpctrain.torch.separate_models import SeparateModelsWatch

            session = active_worker("on_training_start()").session
            store = distributed.PrefixStore("hpctrain-models", self._store)
            self._watch = SeparateModelsWatch(store, context.world, lambda: session.reports)

    def variables(self, context: BackendContext, config: Any) -> dict[str, str]:
        """Return what else is exported, for as long as the process group is. Not collective."""
        return {}

    def on_shutdown(self, context: BackendContext, config: TorchConfig) -> None:
        """Take the process group down. Collective."""
        from torch import distributed

        from hpctrain.torch import order

        order.compare_through(None)
        self._stop_profiling()
        # Nobody may still be in a collective when the first leaves the group. Even where the
        # training function has destroyed it: perhaps only on some ranks.
        context.comm.barrier()
        record_with(None)
        if self._watch is not None:
            self._watch.look()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        # The store lives in rank 0, and NCCL's watchdogs look into it to their end.
        context.comm.barrier()
        self._store = None

    def _stop_profiling(self) -> None:
        if self._clock is not None:
            time_steps_with(None)
            self._clock.close()
            self._clock = None
        if self._profiler is not None:
            profile_with(None)
            self._profiler.close()
            self._profiler = None

    def release(self) -> None:
        """Give torch its threads back, and leave a group of one rank. Not collective.

        A group of several ranks that failed is left alone: to destroy it waits for collectives that
        will not end. What it has recorded explains the failure.
        """
        self._stop_profiling()
        if self._watch is not None:
            self._watch.close()
        if self._num_threads is None:
            return
        import torch
        from torch import distributed

        if self._is_alone and distributed.is_initialized():
            distributed.destroy_process_group()
        torch.set_num_threads(self._num_threads)


def _accelerate_on_cpus(context: BackendContext) -> dict[str, str]:
    """Return what lets Accelerate, and so transformers, see the other ranks without GPUs."""
    is_one_of_several = not context.gpu_ids and context.world.world_size > 1
    return {"ACCELERATE_USE_CPU": "true"} if is_one_of_several else {}


def _select_device(context: BackendContext) -> str:
    """Make this rank's first GPU the current one; return the name of its device."""
    import torch

    if not context.gpu_ids:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"use_gpu=True and CUDA_VISIBLE_DEVICES={','.join(context.visible_gpu_ids)}, but torch "
            f"{torch.__version__} finds no GPU on {context.world.hostname}. Install a build of "
            f"torch for this machine's GPUs and driver, or set use_gpu=False."
        )
    index = context.gpu_indices[0]
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def _gloo_interface(context: BackendContext) -> dict[str, str]:
    """Return variables that set where Gloo listens, if it would listen at another address.

    By itself it listens at the address that the host's own name stands for.
    """
    if environ.variable(_GLOO_INTERFACE) is not None:
        return {}
    address = context.reachable_address()
    if address_of_name(context.world.hostname) == address:
        return {}
    names = [name for name, own in ipv4_addresses().items() if own == address]
    return {_GLOO_INTERFACE: names[0]} if names else {}


def _flight_recorder() -> dict[str, str]:
    """Return what lets torch record collectives, also those of Gloo, unless the user has chosen."""
    from hpctrain.torch.flight_recorder import BUFFER_SIZE, DEFAULT_BUFFER_SIZE

    return {} if environ.variable(BUFFER_SIZE) is not None else {BUFFER_SIZE: DEFAULT_BUFFER_SIZE}


def _open_store(context: BackendContext, timeout: timedelta) -> tuple[TCPStore, dict[str, str]]:
    """Return a store that all ranks share, and what env:// reads to find it. Collective."""
    from torch import distributed

    world = context.world
    store = None
    address = ("", 0, True)
    if world.world_rank == 0:
        host, listener = _listen(context)
        store, use_libuv = _serve(host, listener, world.world_size, timeout)
        address = (host, store.port, use_libuv)
    host, port, use_libuv = context.comm.bcast(address)
    if store is None:
        try:
            store = distributed.TCPStore(
                host,
                port,
                world.world_size,
                timeout=timedelta(seconds=timeouts.TORCH_STORE_S),
                use_libuv=use_libuv,
            )
        except RuntimeError as error:
            raise LaunchError(
                f"rank {world.world_rank} on {world.hostname} cannot connect to rank 0 at "
                f"{host}:{port}: {error} Compute nodes must reach each other over TCP, on any "
                f"port; ask the site whether a firewall is between them."
            ) from error
        store.set_timeout(timeout)
    return store, {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        **({} if use_libuv else {_LIBUV: "0"}),
    }


def _listen(context: BackendContext) -> tuple[str, socket.socket]:
    """Return where ranks find the store, and a socket that listens there and nowhere else."""
    if context.world.num_nodes > 1:
        address = context.reachable_address()
        return address, listen_at(address)
    # torch asks the DNS for the name of an address that it connects to, also of 127.0.0.1, which
    # can take ten seconds, but not for localhost's, which is ::1 for it if there is IPv6.
    try:
        return _LOCALHOST, socket.create_server((_LOCALHOST, 0), family=socket.AF_INET6)
    except OSError:
        return _LOCALHOST, listen_at(LOOPBACK)


def _serve(
    host: str, listener: socket.socket, world_size: int, timeout: timedelta
) -> tuple[TCPStore, bool]:
    """Return a store that listens in this process, and whether it is the one of libuv."""
    import torch
    from torch import distributed

    serve = partial(
        distributed.TCPStore,
        host,
        listener.getsockname()[1],
        world_size,
        is_master=True,
        wait_for_workers=False,
        # torch's env:// asks rank 0 to listen on MASTER_PORT, and then shares this one.
        multi_tenant=True,
        timeout=timeout,
        # By itself torch listens on all interfaces. It closes the socket with the store.
        master_listen_fd=listener.detach(),
    )
    # Before torch 2.8 libuv takes no socket that listens already.
    major, minor = map(int, torch.__version__.split(".")[:2])
    if environ.variable(_LIBUV) != "0" and (major, minor) >= (2, 8):
        try:
            return serve(use_libuv=True), True
        except RuntimeError as error:
            # Debian builds torch without it.
            if "without libuv" not in str(error):
                raise
    return serve(use_libuv=False), False
