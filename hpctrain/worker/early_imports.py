"""Imports of a rank that has its node to itself, before it joins the others.

Where several ranks share a node, one process imports for them (`hpctrain.worker.fork_server`). A
rank alone imports the same modules at its first moment: while its peers, the agents and the
executor are starting too, and not after them. What it needs for its first checkpoint it imports
then, since no other rank could share that.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hpctrain import environ, timeouts
from hpctrain.log import flush_output
from hpctrain.worker.uncollected import uncollected

_OPTION = "--import-first="
# It runs already, under another name.
_MAIN = "hpctrain.worker.main"
_MPI = "mpi4py"
_ERRORS = 2


def with_imports(command: Iterable[str], asked: str) -> list[str]:
    """Return the command of a rank that imports first. Pure; not collective.

    Parameters
    ----------
    command
        Of an ordinary rank.
    asked
        What, as a fork server is asked.
    """
    return [*command, f"{_OPTION}{asked}"]


def import_early(argv: Sequence[str]) -> None:
    """Import what the command line of this rank names. Not collective. Never raises.

    Where a file of the user's has the name of a module that came from elsewhere, which the rank
    would have found first, it begins once more without. So it does where an import fails: half of a
    package may be left, with which the training would fail in another way.
    """
    asked = next((word for word in argv if word.startswith(_OPTION)), None)
    if asked is None:
        return
    content = json.loads(asked.removeprefix(_OPTION))
    from hpctrain.worker.frame_modules import frame_modules
    from hpctrain.worker.preload import shadowed

    with uncollected(), frame_modules(), _showing_where():
        failure = _import(content["modules"])
    if failure:
        environ.keep_not_forked(failure)
    if failure or shadowed(content["own_places"]):
        flush_output()
        os.execv(sys.executable, [word for word in sys.orig_argv if word != asked])


@contextmanager
def _showing_where() -> Iterator[None]:
    """Print the stack of this process if it is here for long: no executor can ask for it yet."""
    # The thread of faulthandler needs no GIL, which an import keeps while it maps a library, for
    # ever from a filesystem that does not answer.
    faulthandler.dump_traceback_later(timeouts.EARLY_IMPORTS_S, repeat=True, file=_ERRORS)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _import(modules: Iterable[str]) -> str:
    """Import modules of libraries; return which one fails, and how, or nothing."""
    # Executors import this module for their commands.
    from hpctrain.backend import OF_FIRST_CHECKPOINT
    from hpctrain.worker import mpi
    from hpctrain.worker.preload import is_of_library

    left_out = {_MAIN, *OF_FIRST_CHECKPOINT}
    for name in (_MPI, *modules):
        try:
            if name not in left_out and is_of_library(name):
                importlib.import_module(name)
                if name == _MPI:
                    # A module that imports mpi4py.MPI would wait here for the other ranks, and no
                    # process that has initialised MPI can execute itself.
                    mpi.keep_uninitialized()
        except (Exception, SystemExit) as error:
            if not _is_absent(name, error):
                return f"the import of {name} fails: {error!r}"
    return ""


def _is_absent(name: str, error: BaseException) -> bool:
    """Return whether a package is whole, and only lacks a module."""
    is_not_found = isinstance(error, ModuleNotFoundError) and error.name == name
    return is_not_found and name.rpartition(".")[0] in sys.modules
