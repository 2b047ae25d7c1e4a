"""`NodeSlots`: which trials fit on the nodes of an allocation at the same time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from hpctrain.errors import ConfigError
from hpctrain.plan.layout import describe_counts, share_out
from hpctrain.plan.resources import requested_shape
from hpctrain.rundir.display import counted
from hpctrain.scaling_config import ScalingConfig
from hpctrain.tune.slots import Need, NoRoomLeftError, Slot, TakenSlots, need_of

_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """What an allocation has of a node, or what is free of that."""

    cpus: int
    gpus: int = 0
    mem_bytes: float = inf
    cpus_per_core: int = 1
    """Steps have whole cores."""

    def without(self, need: Need, workers: int) -> NodeShare:
        """Return what is left once some workers of a trial have theirs. Not collective."""
        return replace(
            self,
            cpus=self.cpus - self.cpus_of(need) * workers,
            gpus=self.gpus - need.gpus_each * workers,
            mem_bytes=self.mem_bytes - need.mem_bytes_each * workers,
        )

    def cpus_of(self, need: Need) -> int:
        """Return how many CPUs here a worker of a trial takes. Not collective."""
        return -(-need.cpus_each // self.cpus_per_core) * self.cpus_per_core

    def room(self, need: Need) -> int:
        """Return how many workers of a trial fit. Not collective."""
        most = [need.workers, self.cpus // self.cpus_of(need)]
        if need.gpus_each:
            most.append(self.gpus // need.gpus_each)
        if need.mem_bytes_each and self.mem_bytes < inf:
            most.append(int(self.mem_bytes // need.mem_bytes_each))
        if need.most_per_node is not None:
            most.append(need.most_per_node)
        return max(min(most), 0)


def need_on_nodes(scaling: ScalingConfig) -> Need:
    """Return what the workers of a trial need, and how they may lie on nodes. Not collective.

    Raises
    ------
    ConfigError
        If its fields contradict each other, or ask for what a trial cannot have.

    Examples
    --------
    >>> from hpctrain.config import SlurmConfig
    >>> need_on_nodes(ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)))
    Need(cpus=4, gpus=0, mem_bytes=0, workers=4, num_nodes=2, most_per_node=None, spreads=False)
    """
    if spare := scaling.slurm.spare_nodes:
        raise ConfigError(
            f"SlurmConfig(spare_nodes={spare}) of a trial: a sweep holds no nodes back, and "
            f"begins a trial that loses its node again on others. Leave it out."
        )
    num_nodes, most = requested_shape(scaling)
    need = need_of(scaling)
    return Need(
        cpus=need.cpus,
        gpus=need.gpus,
        mem_bytes=need.mem_bytes,
        workers=need.workers,
        num_nodes=num_nodes,
        most_per_node=most,
        spreads=num_nodes is None and scaling.placement_strategy == "SPREAD",
    )


class NodeSlots(TakenSlots[Mapping[str, int]]):
    """The slots of some nodes; a trial has some of them while it runs.

    A trial is on as few nodes as it would be if it were alone: one whose workers fit on a node
    waits for a node with room for all of them. Of the nodes with room it takes the one that it
    fills most, so that large trials find others empty.

    Parameters
    ----------
    nodes
        What there is of each of them, by name.
    most_trials
        ``TuneConfig(max_concurrent_trials=...)``.
    """

    def __init__(self, nodes: Mapping[str, NodeShare], *, most_trials: float = inf) -> None:
        super().__init__()
        self._nodes = dict(nodes)
        self._most_trials = most_trials
        self.lost: dict[str, str] = {}
        """Nodes that are not used any more, and why."""

    def fits(self, need: Need) -> bool:
        """Return whether a trial would get slots now. Not collective.

        One that the nodes do not hold when they are empty would: `take` refuses it.
        """
        if not self._taken:
            return True
        if len(self._taken) >= self._most_trials:
            return False
        try:
            num_nodes = self._count_nodes("a trial", need)
        except (ConfigError, NoRoomLeftError):
            return True
        return choose_nodes(need, self._free(), num_nodes=num_nodes) is not None

    def take(self, trial: str, need: Need) -> Slot | None:
        """Take slots; return which, or None if the trial has to wait. Not collective.

        Raises
        ------
        ConfigError
            If it would not fit if it were alone.
        NoRoomLeftError
            If it would if no node were lost.
        """
        num_nodes = self._count_nodes(trial, need)
        if len(self._taken) >= self._most_trials:
            return None
        free = self._free()
        counts = choose_nodes(need, free, num_nodes=num_nodes)
        if counts is None:
            return None
        self._taken[trial] = need, counts
        return Slot(nodes=counts)

    def keep(self, trial: str, need: Need, slot: Slot) -> None:
        """Note the slots of a trial that runs already. Not collective.

        Nodes of another allocation do not count.
        """
        here = {node: count for node, count in slot.nodes.items() if node in self._nodes}
        self._taken[trial] = need, here

    def leave_out(self, node: str, reason: str) -> bool:
        """Use a node no more; return whether that is news. Not collective."""
        if node in self.lost or node not in self._nodes:
            return False
        self.lost[node] = reason
        return True

    def _living(self) -> dict[str, NodeShare]:
        return {node: share for node, share in self._nodes.items() if node not in self.lost}

    def _free(self) -> dict[str, NodeShare]:
        free = self._living()
        for need, counts in self._taken.values():
            for node, count in counts.items():
                if node in free:
                    free[node] = free[node].without(need, count)
        return free

    def _count_nodes(self, trial: str, need: Need) -> int:
        """Return on how many nodes a trial is; refuse one that does not fit."""
        rooms = [share.room(need) for share in self._living().values()]
        if num_nodes := _count_nodes(need, rooms):
            return num_nodes
        refusal = self._explain_refusal(trial, need, rooms)
        if self.lost and _count_nodes(need, [share.room(need) for share in self._nodes.values()]):
            raise NoRoomLeftError(refusal)
        raise ConfigError(
            f"{refusal} Use fewer workers, request less for each, or make a larger allocation."
        )

    def _explain_refusal(self, trial: str, need: Need, rooms: Sequence[int]) -> str:
        each = counted(need.cpus_each, "CPU")
        if need.gpus_each:
            each += f", {counted(need.gpus_each, 'GPU')}"
        if need.mem_bytes_each:
            each += f", {need.mem_bytes_each / 2**30:.3g} GiB"
        nodes = "" if need.num_nodes is None else f" on {counted(need.num_nodes, 'node')}"
        named = [f"{node}: {why}" for node, why in [*self.lost.items()][:_MOST_NAMED]]
        verb = "is" if len(self.lost) == 1 else "are"
        lost = f" ({len(self.lost)} more {verb} lost: {'; '.join(named)})" if self.lost else ""
        held = describe_counts(rooms) if any(rooms) else "none"
        hold, empty = ("holds", "it is") if len(rooms) == 1 else ("hold", "they are")
        return (
            f"{trial} needs {counted(need.workers, 'worker')} with {each} each"
            f"{nodes}: the {counted(len(rooms), 'node')} of this allocation{lost} {hold} {held} of "
            f"them when {empty} empty."
        )


def _count_nodes(need: Need, rooms: Sequence[int]) -> int:
    """Return on how many nodes a trial is, by how many workers each holds; 0 if it does not fit."""
    rooms = sorted(rooms, reverse=True)
    if need.spreads:
        num_nodes = min(need.workers, sum(room > 0 for room in rooms))
    elif need.num_nodes is not None:
        num_nodes = need.num_nodes
    else:
        held, num_nodes = 0, 0
        while held < need.workers and num_nodes < len(rooms):
            held += rooms[num_nodes]
            num_nodes += 1
    usable = rooms[:num_nodes]
    is_possible = len(usable) == num_nodes and all(usable) and sum(usable) >= need.workers
    return num_nodes if is_possible and num_nodes <= need.workers else 0


def choose_nodes(
    need: Need, free: Mapping[str, NodeShare], *, num_nodes: int
) -> dict[str, int] | None:
    """Return how many workers of a trial go to which nodes; None if they do not fit now.

    Not collective. The nodes that are fullest afterwards, GPUs first.

    Parameters
    ----------
    free
        What is free of each node, the preferred ones first.
    num_nodes
        On how many nodes the trial is.

    Examples
    --------
    >>> free = {"a": NodeShare(cpus=4), "b": NodeShare(cpus=2)}
    >>> choose_nodes(Need(cpus=2, workers=2), free, num_nodes=1)
    {'b': 2}
    """
    rooms = {node: share.room(need) for node, share in free.items()}
    each = -(-need.workers // num_nodes)

    def left(node: str) -> tuple[int, int]:
        share = free[node]
        return share.gpus - need.gpus_each * each, share.cpus - share.cpus_of(need) * each

    fitting = sorted((node for node, room in rooms.items() if room >= each), key=left)
    if len(fitting) < num_nodes:
        # With nodes of different sizes, or if the last one gets fewer.
        fitting = sorted((node for node, room in rooms.items() if room), key=lambda n: -rooms[n])
    chosen = [node for node in free if node in fitting[:num_nodes]]
    if len(chosen) < num_nodes or sum(rooms[node] for node in chosen) < need.workers:
        return None
    counts = share_out(need.workers, [rooms[node] for node in chosen], num_nodes=num_nodes)
    return dict(zip(chosen, counts, strict=True))
