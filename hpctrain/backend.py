"""The contract that a framework fulfils: `Backend` and `BackendConfig`.

Ray Train calls a backend's hooks in the driver, which then sends functions to every worker. Here
the workers are MPI ranks, so the hooks run on every rank, collectively, and talk through the
communicator that the ranks already share: nothing has to pass through one process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hpctrain import environ
from hpctrain.world import Communicator, World


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """What a backend's hook is given. The same hook runs on every rank."""

    world: World
    """Where this rank stands."""
    comm: Communicator
    """A communicator over all ranks, for the backend's own use."""
    cpus_per_worker: int
    """CPUs of this rank; the number of threads it should compute with."""
    gpu_ids: tuple[str, ...]
    """Entries of ``CUDA_VISIBLE_DEVICES`` that belong to this rank."""
    visible_gpu_ids: tuple[str, ...]
    """All entries of ``CUDA_VISIBLE_DEVICES``: those of the other ranks of the node too, where the
    site shows them."""
    address: str
    """See `reachable_address`."""
    replaced: dict[str, str | None] = field(default_factory=dict)
    """The values from before of variables that were exported; None: it was not there."""

    def export(self, **variables: str | None) -> None:
        """Write environment variables of this process, for code that reads them. Not collective.

        None unsets one. When the run is over, each gets the value back that it had.
        """
        for name in variables:
            self.replaced.setdefault(name, environ.variable(name))
        environ.export(variables)

    def take_back(self) -> None:
        """Give exported variables the values back that they had. Not collective.

        It is called when the run is over on this rank, whatever became of it.
        """
        environ.export(self.replaced)
        self.replaced.clear()

    def reachable_address(self) -> str:
        """Return an address of this node that the other ranks can connect to. Not collective.

        In numbers, of IPv4: what a node's name stands for differs between nodes. Another node has
        tried it before the hooks are called. Where there is one node, it is a loopback address.
        """
        return self.address


class Backend:
    """Set a framework up on every rank.

    All ranks call the hooks that are collective. An exception in a hook fails the rank.
    """

    def on_start(self, context: BackendContext, config: Any) -> None:
        """Set the framework up: process groups, trackers. Collective."""

    def on_training_start(self, context: BackendContext, config: Any) -> None:
        """Do what follows `on_start` on all ranks, before the training function. Collective."""

    def on_shutdown(self, context: BackendContext, config: Any) -> None:
        """Take the framework down after the training function returned. Collective.

        Not called on a rank that failed.
        """

    def release(self) -> None:
        """Leave this process as it was before `on_start`. Not collective.

        The last that is called, also on a rank that failed, be it in `on_start`. What waits for
        other ranks belongs into `on_shutdown`.
        """

    def explain(self, error: Exception) -> Exception | None:
        """Return what to raise, from an error of the training function, if more can be said of it.

        Not collective.
        """


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """Settings of a backend. A subclass adds fields and says which `Backend` they are for."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend. The default backend does nothing."""
        return Backend

    def with_options(self, **changes: Any) -> BackendConfig:
        """Return a copy with some fields changed. Not collective."""
        return replace(self, **changes)
