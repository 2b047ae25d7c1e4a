"""The backend: Horovod over the ranks that MPI brought together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.backend import Backend, BackendContext, gpu_indices
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.horovod import installed
from hpctrain.worker.bootstrap import visible_gpus

if TYPE_CHECKING:
    from hpctrain.horovod.config import HorovodConfig
    from hpctrain.horovod.gloo import Rendezvous

_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
_NETWORK = ("GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "GLOO_IFACE", "GLOO_TIMEOUT_SECONDS")
_ALL_VARIABLES = tuple(
    f"HOROVOD_{name}" for name in (*_PLACE, *_NETWORK, "CONTROLLER", "CPU_OPERATIONS", "ELASTIC")
)


class HorovodBackend(Backend):
    """Initialises Horovod: on the ranks' communicator, or with a rendezvous server for Gloo."""

    _rendezvous: Rendezvous | None = None
    _num_threads: int | None = None
    """Of torch, before Horovod was initialised in this process."""
    _is_alone = False

    def on_start(self, context: BackendContext, config: HorovodConfig) -> None:
        """Initialise Horovod. Collective.

        In an elastic run the workers do that, which are children of the ranks.

        Raises
        ------
        ConfigError
            If Horovod cannot be loaded, or is not one for these ranks.
        LaunchError
            If it does not come up.
        """
        if config.is_elastic:
            # A rank needs no torch to keep a worker.
            installed.load_runner()
            self._export(context, config, "gloo")
            return
        hvd = installed.load()
        if hvd.is_initialized():
            raise ConfigError(
                "Horovod is initialised already. A HorovodTrainer does it for its training "
                "function: leave hvd.init() out of the part of the script that every rank runs."
            )
        transport = choose_transport(hvd, context, config)
        import torch

        self._export(context, config, transport)
        self._num_threads = torch.get_num_threads()
        self._is_alone = context.world.world_size == 1
        torch.set_num_threads(context.cpus_per_worker)
        select_gpu(context.gpu_ids, hostname=context.world.hostname)
        try:
            if transport == "mpi":
                hvd.init(comm=context.comm)
            else:
                hvd.init()
        except ValueError as error:
            raise LaunchError(
                f"rank {context.world.world_rank} on {context.world.hostname} cannot initialise "
                f"Horovod over {transport}: {error} Its log says why. Over Gloo compute nodes must "
                f"reach each other over TCP, on any port; HorovodConfig(nics=...) says where."
            ) from error
        if (hvd.rank(), hvd.size()) != (context.world.world_rank, context.world.world_size):
            raise LaunchError(
                f"Horovod made rank {hvd.rank()} of {hvd.size()} of MPI's rank "
                f"{context.world.world_rank} of {context.world.world_size}; they must be equal. "
                f"Horovod was built for another MPI: hpctrain install horovod"
            )

    def on_shutdown(self, context: BackendContext, config: HorovodConfig) -> None:
        """Shut Horovod down. Collective."""
        # The first that leaves takes Horovod down for all.
        context.comm.barrier()
        if not config.is_elastic:
            import horovod.torch as hvd

            hvd.shutdown()
        context.comm.barrier()
        if self._rendezvous is not None:
            self._rendezvous.stop()
            self._rendezvous = None

    def release(self) -> None:
        """Give torch its threads back, and shut down a Horovod of one rank. Not collective.

        A Horovod of several ranks that failed is left alone: to shut it down waits for ranks that
        do not come.
        """
        if self._num_threads is None:
            return
        import horovod.torch as hvd
        import torch

        if self._is_alone:
            hvd.shutdown()
        torch.set_num_threads(self._num_threads)

    def _export(self, context: BackendContext, config: HorovodConfig, transport: str) -> None:
        """Export what Horovod is to read. Collective."""
        variables = self._variables(context, config, transport)
        # What a launcher of Horovod left behind would win over the communicator.
        context.export(**{**dict.fromkeys(_ALL_VARIABLES), **variables})

    def _variables(
        self, context: BackendContext, config: HorovodConfig, transport: str
    ) -> dict[str, str]:
        """Return what Horovod is to read; start the rendezvous where one is needed. Collective."""
        world = context.world
        chosen = {"HOROVOD_CONTROLLER": transport, "HOROVOD_CPU_OPERATIONS": transport}
        if transport == "mpi" or (world.world_size == 1 and not config.is_elastic):
            return chosen
        from hpctrain.horovod.gloo import Rendezvous, network_variables, place_variables
        from hpctrain.horovod.rounds import Rounds

        places = place_variables(context)
        address = None
        if world.world_rank == 0:
            rounds = None
            if config.is_elastic:
                rounds = Rounds(world.world_size, timeout_s=config.timeout_s)
            self._rendezvous = Rendezvous(context.reachable_address(), places, rounds)
            address = (context.reachable_address(), self._rendezvous.port)
        host, port = context.comm.bcast(address)
        chosen |= places[world.world_rank] | network_variables(context, host, port, config)
        return chosen | ({"HOROVOD_ELASTIC": "1"} if config.is_elastic else {})


def choose_transport(
    hvd: Any, context: BackendContext, config: HorovodConfig
) -> Literal["mpi", "gloo"]:
    """Return what carries Horovod's messages. Not collective.

    Raises
    ------
    ConfigError
        If the installed Horovod does not have it.
    """
    # One rank needs no MPI, and the interpreter that it may be is not to initialise it.
    wants_mpi = config.transport == "mpi" or (config.transport == "auto" and hvd.mpi_built())
    if context.world.world_size > 1 and wants_mpi:
        installed.check_mpi(hvd)
        return "mpi"
    installed.check_gloo(hvd)
    return "gloo"


def select_gpu(gpu_ids: Sequence[str], *, hostname: str) -> None:
    """Make a rank's first GPU the current one; do nothing if it has none. Not collective.

    Raises
    ------
    ConfigError
        If torch sees no GPU.
    """
    if not gpu_ids:
        return
    import torch

    visible = visible_gpus()
    if not torch.cuda.is_available():
        raise ConfigError(
            f"use_gpu=True and CUDA_VISIBLE_DEVICES={','.join(visible)}, but torch "
            f"{torch.__version__} finds no GPU on {hostname}. Install a build of torch for this "
            f"machine's GPUs and driver, or set use_gpu=False."
        )
    torch.cuda.set_device(gpu_indices(gpu_ids, visible)[0])
