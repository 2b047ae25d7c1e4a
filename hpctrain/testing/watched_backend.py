"""`WatchedConfig`: a backend that lets another one do the work, and looks at what it does.

What is wrong is raised on the ranks themselves, so that nothing hangs: before a collective of the
communicator begins, all ranks have said which one they are about to call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.backend import Backend, BackendConfig, BackendContext
from hpctrain.world import Communicator

_COLLECTIVES = (
    *("barrier", "bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce"),
    # mpi4py's own, for those who know that it is one of its communicators.
    *("Barrier", "Bcast", "Gather", "Allgather", "Allgatherv", "Allreduce", "Dup", "Split"),
)


@dataclass(frozen=True, kw_only=True)
class WatchedConfig(BackendConfig):
    """A backend's settings, for a run in which its hooks are watched."""

    watched: BackendConfig
    """The settings."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend that watches."""
        return WatchedBackend

    @property
    def preload(self) -> tuple[str, ...]:  # type: ignore[override]
        """The modules of the other's ranks: they are forked where those of its users are."""
        return self.watched.preload


class WatchedBackend(Backend):
    """Calls the hooks of another backend.

    Each of those that are collective raises AssertionError if ranks call different collectives in
    it, or one more than another.
    """

    _backend: Backend | None = None

    def on_start(self, context: BackendContext, config: WatchedConfig) -> None:
        """Call the other's. Collective."""
        self._backend = config.watched.backend_cls()
        self._call("on_start", context, config)

    def on_training_start(self, context: BackendContext, config: WatchedConfig) -> None:
        """Call the other's. Collective."""
        self._call("on_training_start", context, config)

    def on_shutdown(self, context: BackendContext, config: WatchedConfig) -> None:
        """Call the other's. Collective."""
        self._call("on_shutdown", context, config)

    def explain(self, error: Exception) -> Exception | None:
        """Call the other's. Not collective."""
        return None if self._backend is None else self._backend.explain(error)

    def release(self) -> None:
        """Call the other's. Not collective."""
        if self._backend is not None:
            self._backend.release()

    def _call(self, hook: str, context: BackendContext, config: WatchedConfig) -> None:
        where = f"{type(self._backend).__name__}.{hook}()"
        watched = replace(context, comm=in_step(context.comm, where))
        getattr(self._backend, hook)(watched, config.watched)
        _agree(context.comm, "comes to the end", where)


def in_step(comm: Communicator, where: str) -> Communicator:
    """Return a communicator whose collectives begin only if all ranks call the same one.

    Not collective. It is of the same class as `comm`, so that it can be given to what wants MPI's.

    Parameters
    ----------
    comm
        What it communicates with; its class can be made from it.
    where
        What the error calls the place.
    """
    kind: Any = type(comm)

    def checked(name: str) -> Callable[..., Any]:
        call = getattr(kind, name)

        def check_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            _agree(comm, f"calls comm.{name}()", where)
            return call(self, *args, **kwargs)

        return check_and_call

    methods = {name: checked(name) for name in _COLLECTIVES if hasattr(kind, name)}
    watched: Communicator = type("InStep", (kind,), methods)(comm)
    return watched


def _agree(comm: Communicator, what: str, where: str) -> None:
    said = comm.allgather(what)
    if len(set(said)) > 1:
        ranks = ", ".join(f"rank {rank} {text}" for rank, text in enumerate(said))
        raise AssertionError(
            f"{where} is collective, and its ranks do not call the same: {ranks}. Without this "
            f"test they would wait for each other."
        )
