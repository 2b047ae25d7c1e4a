"""The contract that a framework fulfils: `Backend` and `BackendConfig`.

Ray Train calls a backend's hooks in the driver, which then sends functions to every worker. Here
the workers are MPI ranks, so the hooks run on every rank, collectively, and communicate through the
communicator that the ranks already share: no single process is a bottleneck. A hook for Ray Train,
``on_start(worker_group, backend_config)``, runs unchanged: its argument has the methods of a worker
group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hpctrain import environ
from hpctrain.plan import spec
from hpctrain.world import Communicator, World

if TYPE_CHECKING:
    from concurrent.futures import Future

OF_FIRST_CHECKPOINT = (
    "hpctrain.worker.upload",
    "hpctrain.rundir.bulk",
    "hpctrain.rundir.shared_staging",
)
"""What ranks do not need before their first checkpoint."""
OF_EVERY_RANK = (
    "hpctrain.worker.main",
    "hpctrain.worker.linked_training",
    "hpctrain.worker.train",
    "hpctrain.worker.seeding",
    "hpctrain.rundir.trust",
    *OF_FIRST_CHECKPOINT,
    "cloudpickle",
    "encodings.ascii",
    "encodings.idna",
    "mpi4py",
)
"""What ranks import whatever their backend is, for `BackendConfig.preload`."""

T = TypeVar("T")


def modules_of_trials(settings: spec.RankSettings) -> tuple[str, ...]:
    """Return what a process imports that ranks of trials are forked from. Pure; not collective.

    Parameters
    ----------
    settings
        The surroundings of these ranks.
    """
    modules = (*OF_EVERY_RANK, *settings.preload, *settings.preload_for_trials)
    return tuple(dict.fromkeys(modules))


def gpu_indices(gpu_ids: Sequence[str], visible: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers by which frameworks call GPUs. Pure; not collective.

    ``CUDA_VISIBLE_DEVICES`` is left as the site set it, since NCCL wants to see the GPUs of the
    other ranks of the node; so a rank's first GPU need not be number 0.

    Parameters
    ----------
    gpu_ids
        Entries of ``CUDA_VISIBLE_DEVICES``.
    visible
        All of its entries.

    Examples
    --------
    >>> gpu_indices(["6", "7"], visible=["4", "5", "6", "7"])
    (2, 3)
    """
    return tuple(visible.index(gpu) for gpu in gpu_ids)


@dataclass(frozen=True, kw_only=True)
class BackendContext:
    """The argument of a backend's hooks. The same hook runs on every rank.

    It is also Ray Train's worker group: `execute` and the like call a function on all ranks, or on
    one, and give every rank the results.
    """

    world: World
    """Position of this rank among all ranks."""
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
    """Former values of exported variables; None: it was not set."""

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        """Numbers of this rank's GPUs for frameworks: indices among all visible ones."""
        return gpu_indices(self.gpu_ids, self.visible_gpu_ids)

    def export(self, **variables: str | None) -> None:
        """Write environment variables of this process, for code that reads them. Not collective.

        None unsets one. At the end of the run each former value is restored.
        """
        for name in variables:
            self.replaced.setdefault(name, environ.variable(name))
        environ.export(variables)

    def take_back(self) -> None:
        """Restore the former values of exported variables. Not collective.

        Called at the end of the run on this rank, also after a failure.
        """
        environ.export(self.replaced)
        self.replaced.clear()

    def reachable_address(self) -> str:
        """Return an address of this node that the other ranks can connect to. Not collective.

        A numeric IPv4 address, since nodes resolve a node's name differently. Another node has
        tested it before the hooks are called. On a single node it is a loopback address.
        """
        return self.address

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self.world.world_size

    def execute(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> list[T]:
        """Call a function on every rank at the same time; return what each returned, by rank.

        Collective. Function and arguments are those of rank 0. An exception of the function is
        raised on every rank, from the lowest.
        """
        return self._call(range(len(self)), function, args, kwargs)

    def execute_single(self, rank: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function on one rank; return its result on every rank. Collective."""
        if not 0 <= rank < len(self):
            raise ValueError(f"rank={rank}, but this group has the ranks 0 to {len(self) - 1}.")
        return self._call([rank], function, args, kwargs)[0]

    def execute_async(
        self, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> list[Future[T]]:
        """Call `execute`; return the results as finished futures. Collective."""
        return [_done(value) for value in self.execute(function, *args, **kwargs)]

    def execute_single_async(
        self, rank: int, function: Callable[..., T], *args: Any, **kwargs: Any
    ) -> Future[T]:
        """Call `execute_single`; return the result as a finished future. Collective."""
        return _done(self.execute_single(rank, function, *args, **kwargs))

    def _call(
        self, ranks: Any, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[T]:
        what = f"the call of {function!r}"
        rank = self.comm.rank
        call = spec.pack((function, args, kwargs), what=what) if rank == 0 else None
        function, args, kwargs = spec.unpack(self.comm.bcast(call))
        answer: tuple[bool, Any] | None = None
        if rank in ranks:
            try:
                answer = True, function(*args, **kwargs)
            except Exception as error:
                answer = False, error
        answers = [spec.unpack(a) for a in self.comm.allgather(spec.pack(answer, what=what))]
        for succeeded, value in filter(None, answers):
            if not succeeded:
                raise value
        return [value for _, value in filter(None, answers)]


def _done(value: T) -> Future[T]:
    # Every rank imports this module, and few call this: it loads logging.
    from concurrent.futures import Future

    future: Future[T] = Future()
    future.set_result(value)
    return future


class Backend:
    """Set up a framework on every rank.

    All ranks call the collective hooks. An exception in a hook fails the rank.
    """

    def on_start(self, context: BackendContext, config: Any) -> None:
        """Set up the framework: process groups, trackers. Collective."""

    def on_training_start(self, context: BackendContext, config: Any) -> None:
        """Run after `on_start` on all ranks, before the training function. Collective."""

    def on_shutdown(self, context: BackendContext, config: Any) -> None:
        """Shut down the framework after the training function returned. Collective.

        Not called on a rank that failed.
        """

    def release(self) -> None:
        """Restore the state of this process from before `on_start`. Not collective.

        Called last, also on a rank that failed, even in `on_start`. Code that waits for other ranks
        belongs in `on_shutdown`.
        """

    def explain(self, error: Exception) -> Exception | None:
        """Return a more specific error for an error of the training function, or None.

        Not collective.
        """


class BackendConfig:
    """Settings of a backend. A subclass adds fields and names its `Backend`.

    It is not a dataclass itself, so subclasses may be frozen dataclasses or not.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    """Installed modules that every rank needs, and that one process of a node may import for all
    ranks: they start no thread, and use neither MPI nor a GPU."""
    preload_for_trials: ClassVar[tuple[str, ...]] = ()
    """More of them, which most training functions lead to: for a process that is kept from trial to
    trial of a sweep, and so imports once for many ranks, and for restarts of ranks that have
    imported them."""
    _backend_path: ClassVar[str] = "hpctrain.backend.Backend"
    """Of the class. A name, since the module of a backend imports that of its settings."""

    def __eq__(self, other: object) -> bool:
        """Return whether both are of the same class, with the same settings."""
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # dataclasses that are frozen have one

    def __repr__(self) -> str:
        """Return the call that creates it."""
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend. The default backend does nothing."""
        module, _, name = self._backend_path.rpartition(".")
        backend: type[Backend] = getattr(import_module(module), name)
        return backend

    def with_options(self, **changes: Any) -> BackendConfig:
        """Return a copy with some fields changed. Not collective."""
        settings: Any = self
        changed: BackendConfig = replace(settings, **changes)
        return changed
