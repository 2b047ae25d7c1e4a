"""`HpctrainEnvironment`: tells Lightning which rank this is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import distributed

from hpctrain import environ
from hpctrain.errors import ConfigError
from hpctrain.lightning.package import import_fabric
from hpctrain.worker.context import active_worker, is_active

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
else:
    ClusterEnvironment = import_fabric("plugins.environments").ClusterEnvironment


class HpctrainEnvironment(ClusterEnvironment):
    """The ranks of a run, as Lightning sees them: ``Trainer(plugins=[HpctrainEnvironment()])``.

    Lightning would find MPI, or Slurm, by itself; but then it starts communication and catches
    signals that are hpctrain's.

    Raises
    ------
    WorkerContextError
        Outside of a training function.
    ConfigError
        If the run has no process group.
    """

    def __init__(self) -> None:
        self._world = active_worker("HpctrainEnvironment()").context.world
        if not distributed.is_initialized():
            raise ConfigError(
                "HpctrainEnvironment() needs the process group that a TorchTrainer sets up. Run "
                "the training function with hpctrain.torch.TorchTrainer."
            )

    @property
    def creates_processes_externally(self) -> bool:
        """Always true: ranks are there before Lightning is."""
        return True

    @property
    def main_address(self) -> str:
        """Host of rank 0."""
        return environ.variable("MASTER_ADDR") or "localhost"

    @property
    def main_port(self) -> int:
        """Port of the store of the process group."""
        return int(environ.variable("MASTER_PORT") or 0)

    @staticmethod
    def detect() -> bool:
        """Return whether this process is a rank in a training function. Not collective."""
        return is_active()

    def world_size(self) -> int:
        """Return the number of ranks. Not collective."""
        return self._world.world_size

    def global_rank(self) -> int:
        """Return the position among all ranks. Not collective."""
        return self._world.world_rank

    def local_rank(self) -> int:
        """Return the position among the ranks of this node. Not collective."""
        return self._world.local_rank

    def node_rank(self) -> int:
        """Return the position of this node. Not collective."""
        return self._world.node_rank

    def set_world_size(self, size: int) -> None:
        """Do nothing: Lightning computes it from arguments of its Trainer. Not collective."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: Lightning computes it as if all nodes had equally many. Not collective."""
