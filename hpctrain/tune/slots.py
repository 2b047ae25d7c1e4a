"""`Slots`: which trials fit on a machine at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hpctrain.errors import ConfigError
from hpctrain.scaling_config import ScalingConfig


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a machine has."""

    cpus: int
    gpus: tuple[str, ...] = ()
    """Entries of ``CUDA_VISIBLE_DEVICES``."""
    mem_bytes: float = inf
    most_trials: float = inf
    """``TuneConfig(max_concurrent_trials=...)``."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a trial needs."""

    cpus: int
    gpus: int = 0
    mem_bytes: int = 0


def need_of(scaling: ScalingConfig) -> Need:
    """Return what the workers of a trial need together. Pure.

    Examples
    --------
    >>> need_of(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 4}))
    Need(cpus=8, gpus=0, mem_bytes=0)
    """
    total, workers = scaling.total_resources, max(scaling.max_workers, 1)
    return Need(
        cpus=total["CPU"],
        gpus=total.get("GPU", 0),
        mem_bytes=(scaling.mem_bytes_per_worker or 0) * workers,
    )


class Slots:
    """The slots of a machine; a trial has one while it runs.

    A trial that needs more CPUs or memory than there are runs alone, as a run does.

    Parameters
    ----------
    capacity
        What the machine has.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._taken: dict[str, tuple[Need, tuple[str, ...]]] = {}

    @property
    def has_room(self) -> bool:
        """Whether the smallest trial that there is would fit."""
        return self._fits(Need(cpus=1))

    def take(self, trial: str, need: Need) -> tuple[str, ...] | None:
        """Take a slot; return the GPUs of the trial, or None if it has to wait.

        Not collective.

        Raises
        ------
        ConfigError
            If there are not as many GPUs.
        """
        if need.gpus > len(self._capacity.gpus):
            raise ConfigError(
                f"{trial} needs {need.gpus} GPUs, and this machine shows "
                f"{len(self._capacity.gpus)}. Use fewer workers, or use_gpu=False."
            )
        if not self._fits(need):
            return None
        used = {gpu for _, gpus in self._taken.values() for gpu in gpus}
        free = tuple(gpu for gpu in self._capacity.gpus if gpu not in used)
        if len(free) < need.gpus:
            return None
        self._taken[trial] = need, free[: need.gpus]
        return free[: need.gpus]

    def keep(self, trial: str, need: Need, gpus: tuple[str, ...]) -> None:
        """Note the slot of a trial that runs already. Not collective."""
        self._taken[trial] = need, gpus

    def give_back(self, trial: str) -> None:
        """Free the slot of a trial, if it has one. Not collective."""
        self._taken.pop(trial, None)

    def _fits(self, need: Need) -> bool:
        if not self._taken:
            return True
        needs = [taken for taken, _ in self._taken.values()]
        return (
            len(needs) < self._capacity.most_trials
            and sum(each.cpus for each in needs) + need.cpus <= self._capacity.cpus
            and sum(each.mem_bytes for each in needs) + need.mem_bytes <= self._capacity.mem_bytes
        )
