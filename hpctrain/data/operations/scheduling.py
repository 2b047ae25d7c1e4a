"""Arguments of Ray Data that say where a cluster runs something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.log import log

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


def say_no_meaning(where: str, given: Mapping[str, Any]) -> None:
    """Log once that arguments are accepted, and have no effect.

    Not collective.

    Parameters
    ----------
    where
        The function that was given them.
    given
        Arguments by name; those that are None, or Ray's default of -1, are not given.
    """
    names = [name for name, value in given.items() if value is not None and value != -1]
    if new := [name for name in names if name not in _said]:
        _said.update(new)
        log(
            f"{where}: {', '.join(new)} {'has' if len(new) == 1 else 'have'} no meaning here, and "
            f"no effect: each rank reads and transforms its own part. "
            f"ScalingConfig says how many ranks there are, and with which resources."
        )


def say_no_blocks(
    where: str,
    parallelism: int,
    concurrency: Any,
    override_num_blocks: int | None,
    ray_remote_args: Mapping[str, Any] | None,
) -> None:
    """Log once that the arguments of Ray's readers have no effect. Not collective."""
    given = {"parallelism": parallelism, "concurrency": concurrency}
    given |= {"override_num_blocks": override_num_blocks, "ray_remote_args": ray_remote_args}
    say_no_meaning(where, given)
