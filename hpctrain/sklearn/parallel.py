"""Distribution of joblib's tasks over MPI ranks that all run the same program.

All ranks reach the same ``joblib.Parallel`` call with the same tasks, because they run the same
code on the same data. So no task is sent: each rank runs the tasks whose number modulo the world
size is its rank, and the ranks exchange the results.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from joblib import parallel_config, register_parallel_backend
from joblib.parallel import ParallelBackendBase

from hpctrain import environ, timeouts
from hpctrain.collective import barrier
from hpctrain.worker.context import active_worker

BACKEND = "hpctrain"


class _Task:
    """One batch of calls, which one rank runs."""

    def __init__(self, call: Callable[[], Any], callback: Callable[[Any], None] | None) -> None:
        self.call = call
        self.callback = callback
        self.outcome: tuple[bool, Any] | None = None
        """Whether it succeeded, and the result or the exception."""


class MPIBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Runs the tasks of a ``joblib.Parallel`` call on all ranks.

    Parameters
    ----------
    **options
        Options from joblib.
    """

    supports_timeout = False
    supports_retrieve_callback = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._waiting: list[_Task] = []
        self._threads = 1

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of ranks, or 1 if that is requested. Not collective."""
        return 1 if n_jobs == 1 else int(active_worker("joblib").comm.size)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        **_: Any,
    ) -> int:
        """Make `parallel` submit all its tasks before the first one runs. Not collective."""
        self.parallel = parallel
        self._threads = _count_threads() if prefer == "threads" else 1
        # Tasks are not copied, so this costs no memory; and ranks wait for each other only once.
        parallel.pre_dispatch = "all"
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Any = None) -> _Task:
        """Queue a task. Not collective."""
        task = _Task(func, callback)
        self._waiting.append(task)
        return task

    def retrieve_result(self, out: _Task, timeout: float | None = None) -> Any:
        """Return the result of a task; the first call runs all tasks. Collective."""
        if out.outcome is None:
            self._run()
        assert out.outcome is not None
        went_well, value = out.outcome
        if not went_well:
            raise value
        return value

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Drop tasks that were not run. Not collective."""
        self._waiting.clear()

    def _run(self) -> None:
        comm = active_worker("joblib").comm
        tasks, self._waiting = self._waiting, []
        calls = [task.call for task in tasks[comm.rank :: comm.size]]
        if self._threads == 1:
            mine = list(map(_outcome, calls))
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                mine = list(pool.map(_outcome, calls))
        # Ranks with fewer tasks wait here without using their CPU.
        barrier(timeout_s=timeouts.FOLDS_S)
        for rank, outcomes in enumerate(comm.allgather(mine)):
            for task, outcome in zip(tasks[rank :: comm.size], outcomes, strict=True):
                task.outcome = outcome
        # Tasks may have drawn random numbers, different tasks on each rank.
        np.random.set_state(comm.bcast(np.random.get_state()))
        for task in tasks:
            if task.callback is not None:
                task.callback(task)


@contextlib.contextmanager
def parallel_over_ranks() -> Iterator[None]:
    """Distribute joblib's tasks over the ranks, inside of a training function. Collective.

    Every rank must run the same code on the same data in the block: cross-validation and searches
    of scikit-learn, or ``joblib.Parallel`` itself. All ranks have NumPy's global random state of
    rank 0. Tasks that prefer threads, such as the trees of a forest, run on all CPUs of a worker;
    others one by one. Nested tasks use threads of their rank.

    Examples
    --------
    ::

        with parallel_over_ranks():
            search = GridSearchCV(SVC(), {"C": [0.1, 1, 10]}).fit(x, y)
    """
    comm = active_worker("parallel_over_ranks()").comm
    if comm.size == 1:
        yield
        return
    register_parallel_backend(BACKEND, MPIBackend)
    before = np.random.get_state()
    np.random.set_state(comm.bcast(before))
    try:
        with parallel_config(backend=BACKEND, n_jobs=comm.size):
            yield
    finally:
        np.random.set_state(before)


def _count_threads() -> int:
    """Return the compute threads of this rank, which hpctrain sets to the CPUs of a worker."""
    return int(environ.variable("OMP_NUM_THREADS") or 1)


def _outcome(call: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, call()
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # its __reduce__ can raise anything
            return False, RuntimeError(f"{type(error).__name__}: {error}")
        return False, error
