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
"""What Ray Data's operations on rows and batches take besides."""
OF_READS = ("parallelism", "override_num_blocks", *OF_TASKS)
"""What Ray Data's readers take besides."""

_said: set[str] = set()


@dataclass(frozen=True)
class TaskPoolStrategy:
    """Ray Data's wish for tasks, as ``compute=`` of ``map_batches()``. Has no meaning here."""

    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ActorPoolStrategy:
    """Ray Data's wish for actors, as ``compute=`` of ``map_batches()``. Has no meaning here.

    A class that is given to ``map_batches()`` is constructed once in each rank.
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None


def say_no_meaning(where: str, given: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Log once that arguments are accepted, and have no effect.

    Not collective.

    Parameters
    ----------
    where
        The function that was given them.
    given
        Arguments by name; those that are None, or Ray's default of -1, are not given.
    known
        Names that there are, where the function takes any; by default those of `given`.

    Raises
    ------
    TypeError
        If another one is given.
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
            f"{where}: {', '.join(new)} {'has' if len(new) == 1 else 'have'} no meaning here, and "
            f"no effect: each rank reads and transforms its own part. "
            f"ScalingConfig says how many ranks there are, and with which resources."
        )
