"""The MPICH of this environment's wheel, whose files a process opens before it is forked.

Loading it opens eight files, ``MPI_Init`` five more, and both look for them where they are not. A
process that has loaded it shares that with its forks, each of which starts MPI for itself. Only
this library is known to read nothing of a rank's when it is loaded (Cray's does).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpctrain import environ

# More than a struct sigaction, whose size is the C library's matter.
_ACTION_BYTES = 512
_actions_of_library: dict[int, bytes] = {}
# The first two choose another MPI, the others name files that UCX opens when it is loaded.
_OTHERWISE = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI", "UCX_LOG_FILE", "UCX_STATS_DEST")
_LIBRARIES = ("libmpi.so.12", "libucs.so.0", "libucp.so.0", "libuct.so.0", "libfabric.so.1")


def is_own_mpich() -> bool:
    """Return whether the MPI of this process is the wheel's, and all that it loads.

    Not collective.
    """
    return (
        not any(environ.variable(name) for name in _OTHERWISE)
        and not _has_others(environ.variable("LD_LIBRARY_PATH") or "")
        and _is_installed(sys.prefix)
        and _is_for_both()
    )


@contextmanager
def keeping_signal_actions() -> Iterator[None]:
    """Take back how signals are handled after a load of the library, until `take_signal_actions`.

    Not collective. UCX handles SIGHUP from then on.
    """
    before = _signal_actions()
    try:
        yield
    finally:
        changed = {n: a for n, a in _signal_actions().items() if a != before[n]}
        _actions_of_library.update(changed)
        for number in changed:
            _set_signal_action(number, before[number])


def take_signal_actions() -> None:
    """Handle signals as if this process had loaded the library now. Not collective."""
    for number, action in _actions_of_library.items():
        _set_signal_action(number, action)
    _actions_of_library.clear()


def load_transports() -> None:
    """Load the modules of UCX that ``MPI_Init`` would, in its way; nothing without UCX.

    Not collective. They register themselves, and open no device yet.
    """
    with suppress(OSError, AttributeError):
        uct = ctypes.CDLL(str(_parts() / "libuct.so.0"), mode=os.RTLD_NOLOAD)
        found, count = ctypes.c_void_p(), ctypes.c_uint()
        if uct.uct_query_components(ctypes.byref(found), ctypes.byref(count)) == 0:
            uct.uct_release_component_list(found)


# Forks ask again.
@functools.cache
def _has_others(library_path: str) -> bool:
    """Return whether the linker finds other libraries first, of which nothing is known."""
    places = [Path(place) for place in library_path.split(":") if place]
    return any((place / name).exists() for place in places for name in _LIBRARIES)


@functools.cache
def _is_for_both() -> bool:
    """Return whether mpi4py is the wheel, which looks for its MPI, and was not built for one."""
    found = importlib.util.find_spec("mpi4py")
    places = [] if found is None else [Path(p) for p in found.submodule_search_locations or ()]
    return any(
        any(place.glob("MPI.mpich.*.so")) and not any(place.glob("MPI.cpython-*.so"))
        for place in places
    )


@functools.cache
def _is_installed(prefix: str) -> bool:
    library = Path(prefix) / "lib" / "libmpi.so.12"
    return library.exists() and _parts().is_dir()


def _parts() -> Path:
    return Path(sys.prefix) / "lib" / "mpich"


def _signal_actions() -> dict[int, bytes]:
    libc, found = ctypes.CDLL(None), {}
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(_ACTION_BYTES)
        if libc.sigaction(int(number), None, action) == 0:
            found[int(number)] = action.raw
    return found


def _set_signal_action(number: int, action: bytes) -> None:
    ctypes.CDLL(None).sigaction(number, ctypes.create_string_buffer(action, _ACTION_BYTES), None)
