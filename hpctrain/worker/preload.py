"""Imports of a fork server: which modules it may have, and whether it can still fork after each."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import site
import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpctrain import linux
from hpctrain.worker.frame_modules import frame_modules
from hpctrain.worker.uncollected import uncollected

_HPCTRAIN = str(Path(__file__).parents[1]) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LIBRARY = Path(os.__file__).parent
# "stdlib" and "platstdlib" of sysconfig, which reads how Python was built for that.
_STDLIB = tuple(
    f"{path}{os.sep}" for path in (_LIBRARY, Path(sys.exec_prefix, sys.platlibdir, _LIBRARY.name))
)
# Compute devices that a library has opened: their state does not survive a fork.
_DEVICES = re.compile(r"/dev/(?:nvidia|kfd|dri/|dxg|accel|hl\d|xpmem|infiniband)")
_MPI = re.compile(r"/libmpi(?:ch|cxx)?[.\d-]*\.so|/libmpi\.so")
_SUFFIXES = (".py", ".so", ".pyc")


class PreloadError(Exception):
    """A module cannot be imported before a fork; the message says which, and why."""


def preload(names: Sequence[str], *, own_places: Sequence[str]) -> None:
    """Import modules, one after the other, and look after each whether this process can still fork.

    Not collective.

    Parameters
    ----------
    names
        Modules of libraries and of hpctrain. What is not installed, or is the user's own, is left
        to the ranks.
    own_places
        Where ranks look for modules of the user's own.

    Raises
    ------
    PreloadError
        If one of them starts a thread, opens a GPU or loads MPI, or has the name of a file of the
        user's, which ranks would find first.
    """
    refuse_kernel()
    refuse_customization()
    with uncollected(), frame_modules():
        for name in names:
            if not is_of_library(name):
                continue
            try:
                importlib.import_module(name)
            except Exception as error:
                # The ranks fail at the same, and their errors are those that a person should see.
                raise PreloadError(f"the import of {name} fails: {error!r}") from error
            refuse_state(f"the import of {name}")
    if found := shadowed(own_places):
        raise PreloadError(
            f"{found} of yours has the name of a module that the fork server has imported from "
            f"elsewhere; give it another name"
        )


def load_mpi() -> None:
    """Load the MPI library of ranks, last of all, if `preload` has imported ``mpi4py``.

    Not collective. MPI starts in each rank. A library that is not known to allow this is left to
    the ranks (`hpctrain.worker.own_mpich`).

    Raises
    ------
    PreloadError
        If it starts a thread, or opens a GPU or a network card.
    """
    if "mpi4py" in sys.modules:
        from hpctrain.worker import mpi

        mpi.load_before_fork()
        _refuse_devices_and_threads("the load of MPI")


def take_finalizers() -> list[weakref.finalize[..., object]]:
    """Return what the imports leave to the exit by `weakref.finalize`, and keep it from ranks.

    Not collective. A temporary directory, for one, is that of all ranks: the server removes it once
    the last of them has ended. The operators of torch, whose libraries would each be taken apart,
    end with the process.
    """
    finalizers = list(weakref.finalize._registry)  # type: ignore[attr-defined]
    for finalizer in finalizers:
        finalizer.atexit = False
    return [
        finalizer
        for finalizer in finalizers
        if (found := finalizer.peek()) and found[1].__module__ != "torch.library"
    ]


def refuse_kernel() -> None:
    """Refuse a kernel without descriptors of processes (Linux 5.3). Not collective.

    Raises
    ------
    PreloadError
        If this is one.
    """
    try:
        os.close(linux.pidfd_open(os.getpid()))
    except OSError as error:
        raise PreloadError(f"the kernel has no pidfd_open: {error.strerror}") from error


def refuse_customization() -> None:
    """Refuse a `sitecustomize` of the user's own, which may act on what it finds in a rank.

    Not collective. One that has a function ``after_rank_fork`` is called in each rank.

    Raises
    ------
    PreloadError
        If there is one.
    """
    for name in ("sitecustomize", "usercustomize"):
        module = sys.modules.get(name)
        if module is None or hasattr(module, "after_rank_fork"):
            continue
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        # That of a distribution is beside the standard library.
        if not path.startswith(_STDLIB):
            raise PreloadError(
                f"{path} runs at the start of each interpreter; give it a function "
                f"after_rank_fork(), which is called in each rank, or leave it out"
            )


def refuse_state(after: str) -> None:
    """Refuse what a fork would lose, or share where it may not. Not collective.

    Parameters
    ----------
    after
        What has just been done, in words.

    Raises
    ------
    PreloadError
        If there is a second thread, an open GPU, or MPI.
    """
    # Both start threads too.
    if "mpi4py.MPI" in sys.modules or _MPI.search(Path("/proc/self/maps").read_text()):
        raise PreloadError(f"{after} loads MPI, which each rank loads itself")
    _refuse_devices_and_threads(after)


def _refuse_devices_and_threads(after: str) -> None:
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if _DEVICES.match(path):
            raise PreloadError(f"{after} opens {path}, which ranks cannot share")
    if len(os.listdir("/proc/self/task")) > 1:
        # OpenBLAS ends its threads before a fork, and starts them again when it computes.
        _fork_and_end()
        if (others := other_threads()) != []:
            names = ", ".join(others[:4])
            raise PreloadError(f"{after} starts a thread ({names}), which would be lost in ranks")


def shadowed(own_places: Iterable[str]) -> str:
    """Return a file of the user's that has the name of a module from elsewhere; or nothing.

    Not collective.

    Parameters
    ----------
    own_places
        Directories of the user's modules.
    """
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__", "hpctrain"}
    for place in own_places:
        try:
            entries = sorted(os.listdir(place))
        except OSError:
            continue
        for entry in entries:
            name = entry.partition(".")[0]
            if name not in loaded or name in sys.builtin_module_names:
                continue
            path = os.path.join(place, entry)
            is_module = entry.endswith(_SUFFIXES) or os.path.isfile(
                os.path.join(path, "__init__.py")
            )
            if is_module and not _is_from(sys.modules[name], place):
                return path
    return ""


def origins() -> list[str]:
    """Return the files of the imported top-level modules of libraries. Not collective."""
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if "." not in name and isinstance(path, str) and not path.startswith(_STDLIB):
            found.append(path)
    return found


def package_places() -> list[str]:
    """Return the directories of installed packages of this interpreter. Not collective."""
    places = [*site.getsitepackages(), *(path for path in sys.path if path.endswith("-packages"))]
    return list(dict.fromkeys(places))


def is_of_library(name: str) -> bool:
    """Return whether a module is installed, and is not the user's own. Not collective."""
    if name in sys.modules:
        return True
    top = importlib.util.find_spec(name.partition(".")[0])
    if top is None:
        return False
    places = [top.origin] if top.has_location else list(top.submodule_search_locations or ())
    return all(place is not None and _is_foreign(place) for place in places)


def _is_foreign(path: str) -> bool:
    path = os.path.abspath(path) + os.sep
    in_packages = any(packages in path for packages in _PACKAGES)
    return in_packages or path.startswith((_HPCTRAIN, *_STDLIB))


def _is_from(module: object, place: str) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and os.path.abspath(path).startswith(os.path.join(place, ""))


def other_threads() -> list[str]:
    """Return the names of the threads of this process but its first. Not collective."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                found.append(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
            except OSError:
                continue
    return found


def _fork_and_end() -> None:
    with warnings.catch_warnings():
        # Python's, of a fork beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
