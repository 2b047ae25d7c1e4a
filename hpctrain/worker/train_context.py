"""`TrainContext` and `PreemptionInfo`: what a training function gets to know of its run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.rundir.sweep import sweep_of
from hpctrain.world import World

# It looks at the shared filesystem, and the answer stays.
_find_sweep = functools.cache(sweep_of)


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """Where a rank stands, and what its run is called."""

    world: World
    """Ranks and sizes."""
    name: str
    """Name of the run."""
    storage: Path
    """The run directory."""
    metadata: Mapping[str, Any]
    """What the trainer was given as `metadata`."""
    gpu_ids: tuple[str, ...]
    """Entries of ``CUDA_VISIBLE_DEVICES`` that belong to this rank."""

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        """The numbers by which frameworks call this rank's GPUs: places among all visible ones."""
        from hpctrain.backend import gpu_indices
        from hpctrain.worker.bootstrap import visible_gpus

        return gpu_indices(self.gpu_ids, visible_gpus())

    def get_world_size(self) -> int:
        """Return the number of ranks. Not collective."""
        return self.world.world_size

    def get_world_rank(self) -> int:
        """Return the position among all ranks. Not collective."""
        return self.world.world_rank

    def get_local_rank(self) -> int:
        """Return the position among the ranks of this node. Not collective."""
        return self.world.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of ranks on this node. Not collective."""
        return self.world.local_world_size

    def get_node_rank(self) -> int:
        """Return the position of this node. Not collective."""
        return self.world.node_rank

    def get_experiment_name(self) -> str:
        """Return the name of the sweep, in a trial of one; else that of the run. Not collective."""
        return _find_sweep(self.storage) or self.name

    def get_storage(self) -> Path:
        """Return the run directory. Not collective."""
        return self.storage

    def get_trial_name(self) -> str:
        """Return the name of the run, which is a trial, or the only one. Not collective."""
        return self.name

    def get_trial_id(self) -> str:
        """Return the name of the run, which is a trial, or the only one. Not collective."""
        return self.name

    def get_trial_dir(self) -> str:
        """Return the run directory. Not collective."""
        return str(self.storage)

    def get_trial_resources(self) -> Any:
        """Raise an error: there are no placement groups.

        Not collective.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            "get_trial_resources(): there are no placement groups. Pass what was asked for in "
            "train_loop_config, such as scaling_config.num_cpus_per_worker; "
            "get_context().get_world_size() is the number of workers."
        )

    def get_metadata(self) -> dict[str, Any]:
        """Return what the trainer was given as `metadata`. Not collective."""
        return dict(self.metadata)


@dataclass(frozen=True, kw_only=True)
class PreemptionInfo:
    """That the job of a run is about to end."""

    deadline_ms: int | None
    """When it ends, in milliseconds since the epoch; None if that is not known."""
    preempted_node_to_ranks: Mapping[str, Sequence[int]]
    """World ranks by host name: Slurm takes a job away as a whole, so these are all."""

    @property
    def preempted_node_ids(self) -> list[str]:
        """Host names."""
        return list(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """World ranks, in order."""
        return sorted(r for ranks in self.preempted_node_to_ranks.values() for r in ranks)


# Pickles and digests of training functions have them by these names.
TrainContext.__module__ = PreemptionInfo.__module__ = "hpctrain.worker.context"
