"""Arguments of Ray Data that say where a cluster runs something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import did_you_mean
from hpctrain.log import log

OF_TASKS = (
    *("compute", "concurrency", "num_cpus", "num_gpus", "memory", "resources"),
    *("accelerator_type", "scheduling_strategy", "runtime_env", "label_selector"),
    *("max_calls", "max_retries", "retry_exceptions", "max_restarts", "max_task_retries"),
    *("ray_remote_args", "ray_remote_args_fn", "udf_modifying_row_count"),
)
"""Further arguments of Ray Data's operations on rows and batches."""
OF_READS = ("parallelism", "override_num_blocks", *OF_TASKS)
"""Further arguments of Ray Data's readers."""

_said: set[str] = set()


@dataclass(frozen=True)
class TaskPoolStrategy:
    """Ray Data's ``compute=`` of ``map_batches()`` for tasks. Accepted, without effect."""

    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ActorPoolStrategy:
    """Ray Data's ``compute=`` of ``map_batches()`` for actors. Accepted, without effect.

    A class that is given to ``map_batches()`` is constructed once in each rank.
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None


def say_no_meaning(where: str, given: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Log once that arguments are accepted, but have no effect.

    Not collective.

    Parameters
    ----------
    where
        The function that has the arguments.
    given
        Arguments by name; None, or Ray's default of -1, is not given.
    known
        Names of the arguments that exist, if the function takes any name; empty checks none.

    Raises
    ------
    TypeError
        If a name does not exist.
    """
    for name in given:
        if known and name not in known:
            raise TypeError(
                f"{where} has no argument {name!r}. {did_you_mean(name, known)}".rstrip()
            )
    names = [name for name, value in given.items() if value is not None and value != -1]
    if new := [name for name in names if name not in _said]:
        _said.update(new)
        log(
            f"{where}: {', '.join(new)} {'has' if len(new) == 1 else 'have'} no effect: each rank "
            f"reads and transforms its own part. Set the number of ranks and their resources with "
            f"ScalingConfig."
        )
