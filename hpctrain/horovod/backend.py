"""The backend: Horovod over the ranks that MPI brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpctrain import environ
from hpctrain.backend import Backend, BackendContext
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


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What this process was like before Horovod was set up."""

    variables: Mapping[str, str | None]
    """Those of Horovod; None: it was not there."""
    num_threads: int | None
    """Of torch; None: Horovod was not initialised in this process."""
    world_size: int


# Of the process, as Horovod itself is.
_before: _Before | None = None


class HorovodBackend(Backend):
    """Initialises Horovod: on the ranks' communicator, or with a rendezvous server for Gloo."""

    _rendezvous: Rendezvous | None = None

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
        release()  # an earlier run of this process that failed
        if config.is_elastic:
            # A rank needs no torch to keep a worker.
            installed.load_runner()
            _export(context, self._variables(context, config, "gloo"))
            return
        hvd = installed.load()
        if hvd.is_initialized():
            raise ConfigError(
                "Horovod is initialised already. A HorovodTrainer does it for its training "
                "function: leave hvd.init() out of the part of the script that every rank runs."
            )
        transport = choose_transport(hvd, context, config)
        import torch

        _export(
            context,
            self._variables(context, config, transport),
            num_threads=torch.get_num_threads(),
        )
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
        release()

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
            self._rendezvous = Rendezvous(places, rounds)
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
    torch.cuda.set_device(visible.index(gpu_ids[0]))


def release() -> None:
    """Give this process back as it was before Horovod was set up. Not collective.

    Does nothing where it was not. A Horovod of several ranks that failed is left alone: to shut it
    down waits for ranks that do not come.
    """
    global _before
    if _before is None:
        return
    before, _before = _before, None
    if before.num_threads is not None:
        import horovod.torch as hvd
        import torch

        if before.world_size == 1:
            hvd.shutdown()
        torch.set_num_threads(before.num_threads)
    for name, value in before.variables.items():
        if value is not None:
            environ.export({name: value})
        else:
            environ.unset(name)


def _export(
    context: BackendContext, variables: Mapping[str, str], num_threads: int | None = None
) -> None:
    global _before
    _before = _Before(
        variables={name: environ.variable(name) for name in _ALL_VARIABLES},
        num_threads=num_threads,
        world_size=context.world.world_size,
    )
    # What a launcher of Horovod left behind would win over the communicator.
    for name in _ALL_VARIABLES:
        environ.unset(name)
    context.export(**variables)
