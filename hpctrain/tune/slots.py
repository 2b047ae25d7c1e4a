"""`Slots`: which trials fit on a machine at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from hpctrain.errors import ConfigError, LaunchError
from hpctrain.rundir.display import counted
from hpctrain.scaling_config import ScalingConfig

T = TypeVar("T")


class NoRoomLeftError(LaunchError):
    """A trial does not fit on the nodes that are left: it waits for another job."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a machine has."""

    cpus: int
    gpus: tuple[str, ...] = ()
    """Entries of ``CUDA_VISIBLE_DEVICES``."""
    mem_bytes: float = inf
    most_trials: float = inf
    """``TuneConfig(max_concurrent_trials=...)``."""
    allocated_cpus: float = inf
    """Those that Slurm has allocated; without an allocation workers may share CPUs."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What the workers of a trial need together."""

    cpus: int
    gpus: int = 0
    mem_bytes: int = 0
    workers: int = 1
    # What follows is of trials on several nodes.
    num_nodes: int | None = None
    """On so many nodes; None is on as few as possible."""
    most_per_node: int | None = None
    """Workers on a node; None is as many as fit."""
    spreads: bool = False
    """Whether each worker is on a node of its own, if there are enough."""

    @property
    def cpus_each(self) -> int:
        """CPUs of one worker."""
        return self.cpus // self.workers

    @property
    def gpus_each(self) -> int:
        """GPUs of one worker."""
        return self.gpus // self.workers

    @property
    def mem_bytes_each(self) -> int:
        """Memory of one worker."""
        return self.mem_bytes // self.workers


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What a trial has while it runs."""

    gpus: tuple[str, ...] = ()
    """On one machine: entries of ``CUDA_VISIBLE_DEVICES``."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """On nodes of an allocation: how many of its workers are on which, by name."""

    def to_json(self) -> dict[str, Any]:
        """Return what the ledger says of it."""
        return {"gpus": list(self.gpus), **({"nodes": dict(self.nodes)} if self.nodes else {})}

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> Slot:
        """Return what an event of the ledger says. Not collective."""
        counts = event.get("nodes", {}).items()
        nodes = {node: count for node, count in counts if isinstance(count, int) and count > 0}
        return cls(gpus=tuple(event.get("gpus", ())), nodes=nodes)


def need_of(scaling: ScalingConfig) -> Need:
    """Return what the workers of a trial need together. Pure.

    Examples
    --------
    >>> need_of(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 4}))
    Need(cpus=8, gpus=0, mem_bytes=0, workers=2, num_nodes=None, most_per_node=None, spreads=False)
    """
    total, workers = scaling.total_resources, max(scaling.max_workers, 1)
    return Need(
        cpus=total["CPU"],
        gpus=total.get("GPU", 0),
        mem_bytes=(scaling.mem_bytes_per_worker or 0) * workers,
        workers=workers,
    )


class TrialSlots(Protocol):
    """What fits at the same time: on this machine, on nodes, or as jobs."""

    def fits(self, need: Need) -> bool:
        """Return whether a trial would get a slot now; one that is alone, too."""

    def take(self, trial: str, need: Need) -> Slot | None:
        """Take a slot; return it, or None if the trial has to wait.

        Raises ConfigError if it would not fit if it were alone, or NoRoomLeftError if it would if
        no node were lost.
        """

    def keep(self, trial: str, need: Need, slot: Slot) -> None:
        """Note the slot of a trial that runs already."""

    def give_back(self, trial: str) -> None:
        """Free the slot of a trial, if it has one."""

    def put_off(self, trial: str) -> bool:
        """Free the slot of a trial that cannot begin now; return whether this is news."""

    def leave_out(self, node: str, reason: str) -> bool:
        """Use a node no more; return whether that is news."""


class TakenSlots(Generic[T]):
    """The slots that trials have, each with what it has of them."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[Need, T]] = {}

    def give_back(self, trial: str) -> None:
        """Free the slot of a trial, if it has one. Not collective."""
        self._taken.pop(trial, None)

    def put_off(self, trial: str) -> bool:
        """Free the slot of a trial that cannot begin now; return that this is news.

        Not collective.
        """
        self.give_back(trial)
        return True


class Slots(TakenSlots[Slot]):
    """The slots of a machine; a trial has one while it runs.

    A trial that needs more CPUs than there are runs alone, as a run does, unless it needs more than
    Slurm has allocated.

    Parameters
    ----------
    capacity
        What the machine has.
    """

    def __init__(self, capacity: Capacity) -> None:
        super().__init__()
        self.capacity = capacity

    def fits(self, need: Need) -> bool:
        """Return whether a trial would get a slot now. Not collective.

        One that the machine never holds would: `take` refuses it.
        """
        if not self._taken:
            return True
        try:
            self._refuse_too_much("a trial", need)
        except ConfigError:
            return True
        needs = [taken for taken, _ in self._taken.values()]
        return (
            len(needs) < self.capacity.most_trials
            and sum(each.cpus for each in needs) + need.cpus <= self.capacity.cpus
            and sum(each.mem_bytes for each in needs) + need.mem_bytes <= self.capacity.mem_bytes
            and need.gpus <= len(self._free_gpus())
        )

    def take(self, trial: str, need: Need) -> Slot | None:
        """Take a slot; return it, with the GPUs of the trial, or None if it has to wait.

        Not collective.

        Raises
        ------
        ConfigError
            If there are not as many GPUs, or not as much memory, or Slurm has not allocated as many
            CPUs.
        """
        self._refuse_too_much(trial, need)
        if not self.fits(need):
            return None
        slot = Slot(gpus=self._free_gpus()[: need.gpus])
        self._taken[trial] = need, slot
        return slot

    def keep(self, trial: str, need: Need, slot: Slot) -> None:
        """Note the slot of a trial that runs already. Not collective."""
        self._taken[trial] = need, slot

    def leave_out(self, node: str, reason: str) -> bool:
        """Return that this machine is not left out. Not collective."""
        return False

    def _refuse_too_much(self, trial: str, need: Need) -> None:
        has = self.capacity
        if need.gpus > len(has.gpus):
            raise ConfigError(
                f"{trial} needs {need.gpus} GPUs, and this machine shows {len(has.gpus)}. Use "
                f"fewer workers, or use_gpu=False."
            )
        if need.cpus > has.allocated_cpus:
            raise ConfigError(
                f"{trial} needs {need.cpus} CPUs ({counted(need.workers, 'worker')} with "
                f"{need.cpus_each} each), and this "
                f"allocation has {has.allocated_cpus:g}. Use fewer workers, request less for "
                f"each, or make a larger allocation."
            )
        if need.mem_bytes > has.mem_bytes:
            where = "this machine" if has.allocated_cpus == inf else "this allocation"
            raise ConfigError(
                f"{trial} needs {need.mem_bytes / 2**30:.3g} GiB of memory, and {where} has "
                f"{has.mem_bytes / 2**30:.3g} GiB. Use fewer workers, or request less for each: "
                f"resources_per_worker={{'memory': ...}} is in bytes."
            )

    def _free_gpus(self) -> tuple[str, ...]:
        used = {gpu for _, slot in self._taken.values() for gpu in slot.gpus}
        return tuple(gpu for gpu in self.capacity.gpus if gpu not in used)
