"""The one module that imports mpi4py."""

from __future__ import annotations

import ctypes
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from hpctrain.errors import LaunchError
from hpctrain.log import drain_output
from hpctrain.own_time import OwnTime
from hpctrain.worker import own_mpich
from hpctrain.worker.pmi import short_values

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as Comm
    from mpi4py.MPI import Request
    from mpi4py.typing import Buffer

_MOST_SCATTERED_BYTES = 2**30
"""At once, of all ranks together."""
_unfinished: list[Request] = []


def initialized_world_size() -> int | None:
    """Return the size of the MPI world if this process has initialised MPI already, else None.

    Not collective. Does not import mpi4py, which aborts on some login nodes.
    """
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    return int(module.COMM_WORLD.Get_size())


def keep_uninitialized() -> None:
    """Let no import of ``mpi4py.MPI`` initialise MPI, nor the end of Python finalise it.

    Not collective. Loads no MPI library.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False


def load_before_fork() -> None:
    """Load the MPI library where forks of this process may share that; start nothing.

    Not collective. Where it cannot be loaded, ranks raise that.
    """
    if not own_mpich.is_own_mpich():
        return
    keep_uninitialized()
    with own_mpich.keeping_signal_actions():
        try:
            from mpi4py import MPI  # noqa: F401
        except (ImportError, RuntimeError):
            return
        own_mpich.load_transports()


def initialize() -> Comm:
    """Initialise MPI and return a duplicate of the world, for hpctrain's own use. Collective.

    MPI is not finalised behind the caller's back: a child made by ``os.fork`` that ends through
    ``sys.exit`` would take the whole job down. Call `finalize`.

    Raises
    ------
    LaunchError
        If there is no MPI library, or it reports that it could not start.
    """
    keep_uninitialized()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpi4py cannot load an MPI library: {error}. Load the site's MPI (module load ...), "
            f"or install the wheel: pip install 'hpctrain[local]'."
        ) from error
    own_mpich.take_signal_actions()
    if not MPI.Is_initialized():
        _initialize_without_lock()
    return MPI.COMM_WORLD.Dup()


def _initialize_without_lock() -> None:
    """Initialise MPI as the import of mpi4py.MPI does, but let Python's other threads run.

    Where a rank never comes, MPI_Init never ends: only another thread can see that no rank waits
    for this process any more.
    """
    import mpi4py
    from mpi4py import MPI

    level = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    required = ctypes.c_int(getattr(MPI, f"THREAD_{level.upper()}"))
    # What mpi4py is linked to is found through it, whichever library that is.
    library = ctypes.CDLL(MPI.__file__)
    with short_values():
        status = library.MPI_Init_thread(None, None, required, ctypes.byref(ctypes.c_int()))
    if status != MPI.SUCCESS:
        raise LaunchError(f"MPI_Init_thread failed with status {status}.", transient=True)
    if mpi4py.rc.errors == "exception":
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.Set_errhandler(MPI.ERRORS_RETURN)


def split_by_node(comm: Comm, node: int | None = None) -> Comm:
    """Return a communicator over the ranks of this node. Collective.

    Parameters
    ----------
    node
        Number of this node, where MPI does not know which ranks share it; None on all ranks asks
        MPI.
    """
    from mpi4py import MPI

    if node is not None:
        return comm.Split(node, comm.rank)
    return comm.Split_type(MPI.COMM_TYPE_SHARED)


def library_version() -> str:
    """Return the first line of the MPI library's version. Not collective."""
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


def library_version_before_start() -> str:
    """Return the first line of the MPI library's version without initialising MPI. Not collective.

    Raises
    ------
    RuntimeError
        If there is no MPI library.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    return library_version()


def wait_barrier(
    comm: Comm, *, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
) -> bool:
    """Wait until every rank has called, without spinning; return False after the timeout.

    Collective. MPI's own barrier spins a core, which starves ranks that share one.

    Parameters
    ----------
    meanwhile
        Called again and again while this rank waits.
    """
    return _wait(comm.Ibarrier(), timeout_s=timeout_s, meanwhile=meanwhile)


def sum_over_ranks(comm: Comm, values: array[int], *, timeout_s: float) -> array[int] | None:
    """Return the sum of all ranks' values, element by element; None after the timeout.

    Collective. The values are of type code ``q``.
    """
    sums = array("q", bytes(len(values) * values.itemsize))
    return sums if _wait(comm.Iallreduce(values, sums), timeout_s=timeout_s) else None


def allgather_bytes(
    comm: Comm, mine: Buffer, into: Buffer, *, lengths: Sequence[int], starts: Sequence[int]
) -> None:
    """Put every rank's bytes into `into`, on every rank. Collective. Spins.

    Parameters
    ----------
    lengths, starts
        Of each rank's bytes in `into`.
    """
    from mpi4py import MPI

    comm.Allgatherv([mine, MPI.BYTE], [into, lengths, starts, MPI.BYTE])


def exchange_bytes(
    comm: Comm, given: Buffer, into: Buffer, *, lengths: Sequence[int], starts: Sequence[int]
) -> None:
    """Give every rank its block of `given`, and put what all gave this rank into `into`.

    Collective. Spins.

    Parameters
    ----------
    into
        Room for as many blocks of this rank's length as there are ranks.
    lengths, starts
        Of each rank's block in `given`; the same on every rank.
    """
    from mpi4py import MPI

    length = lengths[comm.rank]
    places = [length * rank for rank in range(comm.size)]
    comm.Alltoallv(
        [given, lengths, starts, MPI.BYTE], [into, [length] * comm.size, places, MPI.BYTE]
    )


def allgather_in_time(
    comm: Comm,
    mine: bytes,
    *,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[bytes] | None:
    """Return every rank's bytes, by rank; None after the timeout. Collective."""
    lengths = array("q", bytes(comm.size * 8))
    sizes = comm.Iallgather(array("q", [len(mine)]), lengths)
    if not _wait(sizes, timeout_s=timeout_s, meanwhile=meanwhile):
        return None
    *starts, size = accumulate(lengths, initial=0)
    everything = bytearray(size)
    if not _wait(_gather(comm, mine, everything, lengths, starts), timeout_s=timeout_s):
        return None
    return _parts(everything, lengths)


def gather_in_time(
    comm: Comm,
    mine: bytes,
    *,
    lengths: Sequence[int],
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[bytes] | None:
    """Return every rank's bytes, by rank, on rank 0, and nothing elsewhere; None after the timeout.

    Collective.

    Parameters
    ----------
    lengths
        Of each rank's bytes; only rank 0 needs them.
    """
    from mpi4py import MPI

    is_root = comm.rank == 0
    *starts, size = accumulate(lengths if is_root else (), initial=0)
    everything = bytearray(size)
    into = [everything, lengths, starts, MPI.BYTE] if is_root else None
    request = comm.Igatherv([mine, MPI.BYTE], into)
    if not _wait(request, timeout_s=timeout_s, meanwhile=meanwhile):
        return None
    return _parts(everything, lengths) if is_root else []


def scatter_in_time(
    comm: Comm,
    given: Sequence[bytes],
    *,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> bytes | None:
    """Return what rank 0 gives this rank; None after the timeout. Collective.

    Parameters
    ----------
    given
        Each rank's, by rank, on rank 0.
    """
    from mpi4py import MPI

    is_root = comm.rank == 0
    longest = max(map(len, given), default=0)
    sizes = array("q", chain.from_iterable((len(each), longest) for each in given))
    received = array("q", [0, 0])
    request = comm.Iscatter(sizes if is_root else None, received)
    if not _wait(request, timeout_s=timeout_s, meanwhile=meanwhile):
        return None
    length, longest = received
    mine = memoryview(bytearray(length))
    # Some MPIs count the bytes of all ranks together in 32 bits.
    step = max(_MOST_SCATTERED_BYTES // comm.size, 1)
    for start in range(0, longest, step):
        parts = [each[start : start + step] for each in given]
        lengths = array("q", map(len, parts))
        *starts, _ = accumulate(lengths, initial=0)
        everything = [b"".join(parts), lengths, starts, MPI.BYTE] if is_root else None
        request = comm.Iscatterv(everything, [mine[start : start + step], MPI.BYTE])
        if not _wait(request, timeout_s=timeout_s):
            return None
    return bytes(mine)


def start_sending(comm: Comm, content: Buffer, rank: int, *, tag: int) -> Request:
    """Begin to send bytes to a rank. Not collective: that one begins to receive them."""
    from mpi4py import MPI

    return comm.Isend([content, MPI.BYTE], rank, tag)


def start_receiving(comm: Comm, into: Buffer, rank: int, *, tag: int) -> Request:
    """Begin to receive bytes from a rank. Not collective: that one begins to send them."""
    from mpi4py import MPI

    return comm.Irecv([into, MPI.BYTE], rank, tag)


def sum_in_place(comm: Comm, values: Buffer) -> None:
    """Replace float64 values by their sums over ranks. Collective. Spins."""
    from mpi4py import MPI

    comm.Allreduce(MPI.IN_PLACE, [values, MPI.DOUBLE])


def _gather(
    comm: Comm, mine: Buffer, into: Buffer, lengths: Sequence[int], starts: Sequence[int]
) -> Request:
    from mpi4py import MPI

    return comm.Iallgatherv([mine, MPI.BYTE], [into, lengths, starts, MPI.BYTE])


def _parts(everything: bytearray, lengths: Sequence[int]) -> list[bytes]:
    *starts, _ = accumulate(lengths, initial=0)
    return [
        bytes(everything[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]


def _wait(
    request: Request,
    *,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    own = OwnTime(time.monotonic())
    while not request.Test():
        waited_s = own.look(time.monotonic())
        # MPI may still write into the memory of a request that is given up: it is kept.
        if waited_s > timeout_s:
            _unfinished.append(request)
            return False
        try:
            meanwhile()
        except BaseException:
            _unfinished.append(request)
            raise
        # No rank waits much longer than needed, and one that waits for long uses no core.
        time.sleep(min(waited_s / 10, 1e-2))
    return True


def finalize() -> None:
    """Finalise MPI. Collective."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is not None and not module.Is_finalized():
        module.Finalize()


def abort(code: int = 1) -> None:
    """End all ranks of the world at once, once what this one printed is read. Not collective."""
    drain_output()
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.COMM_WORLD.Abort(code)
