"""The position of a rank, and the collectives that hpctrain itself needs.

`Communicator` is the lower-case (pickling) subset of mpi4py's communicator, so that everything that
communicates can also run on `SerialComm` (one rank, no MPI) and on the thread communicator of
`hpctrain.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class World:
    """Position of one rank among all ranks of one attempt."""

    attempt: int
    """Number of the attempt of this world, from 1. A restart creates a new world."""
    world_rank: int
    """Position among all ranks, ``0 <= world_rank < world_size``."""
    world_size: int
    """Number of ranks."""
    local_rank: int
    """Position among the ranks of the same node."""
    local_world_size: int
    """Number of ranks on the same node."""
    node_rank: int
    """Position of the node, in the order of the lowest world rank on each node."""
    num_nodes: int
    """Number of nodes with at least one rank."""
    hostname: str
    """Host name of the node."""


class Communicator(Protocol):
    """The part of mpi4py's communicator that hpctrain uses. All methods are collective."""

    @property
    def rank(self) -> int:
        """Position of the calling rank. Not collective."""

    @property
    def size(self) -> int:
        """Number of ranks. Not collective."""

    def barrier(self) -> None:
        """Return when every rank has called. Collective."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on every rank. Collective."""

    def allgather(self, obj: Any) -> list[Any]:
        """Return every rank's object, by rank. Collective."""

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's object, by rank, on the root, and None elsewhere. Collective."""

    def scatter(self, objects: Sequence[Any] | None, root: int = 0) -> Any:
        """Return what the root has for this rank, of an object for each, by rank. Collective.

        Other ranks give None.
        """

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any]) -> Any:
        """Return the reduction of every rank's object, pairwise, lower ranks first. Collective.

        Every rank gets the result of the same operations, so they agree to the last bit.
        """


class SerialComm:
    """The communicator of a world of one rank."""

    @property
    def rank(self) -> int:
        """Always 0."""
        return 0

    @property
    def size(self) -> int:
        """Always 1."""
        return 1

    def barrier(self) -> None:
        """Return at once."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return `obj`."""
        return obj

    def allgather(self, obj: Any) -> list[Any]:
        """Return `obj` alone."""
        return [obj]

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return `obj` alone."""
        return [obj]

    def scatter(self, objects: Sequence[Any] | None, root: int = 0) -> Any:
        """Return the only one."""
        (mine,) = objects or ()
        return mine

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any]) -> Any:
        """Return `obj`."""
        return obj
