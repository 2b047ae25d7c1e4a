"""`prepare_trainer`: let a Lightning Trainer run on the ranks of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain.errors import ConfigError
from hpctrain.lightning.callback import ReportCallback
from hpctrain.lightning.environment import HpctrainEnvironment
from hpctrain.lightning.loader import make_resumable
from hpctrain.lightning.package import import_pytorch
from hpctrain.torch.device import get_device
from hpctrain.worker.context import active_worker
from hpctrain.world import World

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def prepare_trainer(trainer: Trainer) -> Trainer:
    """Give a Trainer this run's ranks and this rank's device, whatever the strategy.

    Not collective. ``devices`` and ``num_nodes`` of the Trainer have no meaning here: how many
    there are is what the ScalingConfig says. Data loaders of the training become such that a run
    which resumes from the middle of an epoch goes on with the batches that are left.

    Parameters
    ----------
    trainer
        Made with ``plugins=[HpctrainEnvironment()]``, and a strategy for many processes where there
        is more than one rank.

    Returns
    -------
    Trainer
        The same.

    Raises
    ------
    ConfigError
        If its strategy, its environment or its accelerator does not fit the run.
    """
    pl = import_pytorch()
    is_known: bool = isinstance(trainer, pl.Trainer)
    if not is_known:
        raise ConfigError(
            f"prepare_trainer() was given a {type(trainer).__module__}.{type(trainer).__name__}, "
            f"and hpctrain.lightning uses {pl.__name__} here. Import one of lightning and "
            f"pytorch_lightning only, before hpctrain.lightning."
        )
    world = active_worker("prepare_trainer()").context.world
    device = get_device()
    strategy: Any = trainer.strategy
    is_parallel = isinstance(strategy, pl.strategies.ParallelStrategy)
    if world.world_size > 1 and not is_parallel:
        raise ConfigError(
            f"Trainer(strategy=...) is {type(strategy).__name__}, which lets each of the "
            f"{world.world_size} ranks train by itself. Use strategy='ddp'."
        )
    chosen = strategy.parallel_devices[0] if is_parallel else strategy.root_device
    if chosen.type != device.type or not (is_parallel or chosen == device):
        raise ConfigError(
            f"the Trainer computes on {chosen}, and this rank has {device}. Say with "
            f"ScalingConfig(use_gpu=...) whether workers have GPUs, and with Trainer(accelerator="
            f"'cpu', strategy='ddp') that it is not to use those of the machine."
        )
    if is_parallel:
        _check_environment(strategy)
        _place(strategy, world, device)
    # Other checkpoint callbacks come first: theirs is the "best", and their state is saved.
    callbacks: list[Any] = vars(trainer)["callbacks"]
    callbacks.sort(key=lambda callback: isinstance(callback, ReportCallback))
    strategy.process_dataloader = partial(
        make_resumable, trainer=trainer, then=strategy.process_dataloader, world=world
    )
    return trainer


def _check_environment(strategy: Any) -> None:
    if not isinstance(strategy.cluster_environment, HpctrainEnvironment):
        raise ConfigError(
            f"the Trainer's environment is a {type(strategy.cluster_environment).__name__}. Make "
            f"it with Trainer(plugins=[HpctrainEnvironment()])."
        )
    if type(strategy.launcher).__name__ == "_MultiProcessingLauncher":
        raise ConfigError(
            "Trainer(strategy=...) starts processes of its own, and the ranks are there already. "
            "Use strategy='ddp'."
        )


def _place(strategy: Any, world: World, device: Any) -> None:
    """Let a strategy compute the right sizes from its numbers of nodes and devices."""
    nodes, per_node = world.num_nodes, world.local_world_size
    if nodes * per_node != world.world_size:
        # Lightning knows no nodes with unlike numbers of ranks: this is one large node to it.
        nodes, per_node = 1, world.world_size
    strategy.parallel_devices = [device] * per_node
    strategy.num_nodes = nodes
