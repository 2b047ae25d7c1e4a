"""``ray.air.session``: the functions for training functions, in one module."""

from __future__ import annotations

from typing import Any

from hpctrain.worker.context import get_checkpoint as get_checkpoint
from hpctrain.worker.context import get_context
from hpctrain.worker.context import get_dataset_shard as get_dataset_shard
from hpctrain.worker.context import report as report

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
]


def get_experiment_name() -> str:
    """Return the name of the sweep, in a trial of one; else that of the run. Not collective."""
    return get_context().get_experiment_name()


def get_world_size() -> int:
    """Return the number of ranks. Not collective."""
    return get_context().get_world_size()


def get_world_rank() -> int:
    """Return the position among all ranks. Not collective."""
    return get_context().get_world_rank()


def get_local_rank() -> int:
    """Return the position among the ranks of this node. Not collective."""
    return get_context().get_local_rank()


def get_local_world_size() -> int:
    """Return the number of ranks on this node. Not collective."""
    return get_context().get_local_world_size()


def get_node_rank() -> int:
    """Return the position of this node. Not collective."""
    return get_context().get_node_rank()


def get_trial_name() -> str:
    """Return the name of the run, which is a trial, or the only one. Not collective."""
    return get_context().get_trial_name()


def get_trial_id() -> str:
    """Return the name of the run, which is a trial, or the only one. Not collective."""
    return get_context().get_trial_id()


def get_trial_dir() -> str:
    """Return the run directory. Not collective."""
    return get_context().get_trial_dir()


def get_trial_resources() -> Any:
    """Raise an error: there are no placement groups.

    Not collective.

    Raises
    ------
    ConfigError
        Always.
    """
    return get_context().get_trial_resources()
