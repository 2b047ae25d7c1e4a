"""Import once a node, and fork: ``python -m hpctrain.worker.fork_server LISTENER OWNER SIZE``.

The server imports what every rank needs before its training function, and then waits for the
processes that a launcher has started (`hpctrain.worker.fork_client`). For each of them it forks a
process, gives it what the launcher gave to the client (`hpctrain.worker.launched`), and lets it run
what the client was to run. It has one thread, and nothing of MPI or of a GPU.

Two are descriptors: clients connect to LISTENER, and OWNER leads to the process that has started
the server, which is the executor of this machine (`hpctrain.execute.fork_server`), or the first
client of a node in a step of Slurm. Once that is gone, the server accepts no more clients, and ends
with its last rank. SIZE is the number of clients that a step has on this node; 0 on one machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Iterator

from hpctrain import environ
from hpctrain.worker.fork_protocol import refuse_all, tell
from hpctrain.worker.forked import ForkedRank, keep_program, show_command
from hpctrain.worker.forking import ForkServer
from hpctrain.worker.import_stamps import ImportStamps
from hpctrain.worker.preload import (
    PreloadError,
    load_mpi,
    origins,
    package_places,
    preload,
    take_finalizers,
)
from hpctrain.worker.process_state import resident_bytes

_MOST_PRINTED_BYTES = 2**16
_MOST_FILES = 2**16
# What ranks run, as a rule.
_PROGRAM = "hpctrain.worker.main"


def serve(
    listener: socket.socket, owner: socket.socket, *, num_clients: int = 0
) -> ForkedRank | None:
    """Import, and serve; return what is to be done in a rank, and None at the end of the server.

    Not collective.

    Parameters
    ----------
    num_clients
        How many of them are to learn why this process cannot serve.
    """
    before = environ.environment()
    begun = time.monotonic()
    _raise_limit_of_files()
    if not getattr(sys.flags, "safe_path", False):
        # The working directory, of which nothing may be imported here.
        del sys.path[0]
    with owner.makefile("r", encoding="utf-8") as lines:
        asked = json.loads(lines.readline() or "{}")
    show_command((sys.executable, "-m", "hpctrain.worker.fork_server", *sys.argv[1:4]))
    stamps = ImportStamps(package_places())
    try:
        with _ending_with(owner):
            preload(asked.get("modules", ()), own_places=asked.get("own_places", ()))
            load_mpi()
            keep_program(_PROGRAM)
    except PreloadError as error:
        tell(owner, unusable=str(error))
        refuse_all(listener, str(error), num_clients=num_clients)
        return None
    tell(
        owner,
        ready=time.monotonic() - begun,
        stamps=stamps.after(origins()),
        resident=resident_bytes(os.getpid()),
    )
    finalizers = take_finalizers()
    forked = ForkServer(listener, owner, before=before, printed=_printed()).run()
    if forked is None:
        for finalizer in finalizers:
            finalizer()
    return forked


def _raise_limit_of_files() -> None:
    """Have room for two descriptors of each living rank; ranks get the limit of their client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft not in (resource.RLIM_INFINITY, most) and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _ending_with(owner: socket.socket) -> Iterator[None]:
    """Let the kernel end this process with its owner: an import may take for ever.

    SIGIO comes when there is something to read, the end too; the owner sends nothing meanwhile.
    """
    flags = fcntl.fcntl(owner, fcntl.F_GETFL)
    fcntl.fcntl(owner, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(owner, fcntl.F_SETFL, flags | os.O_ASYNC)
    # Unlike select(), it takes descriptors above 1023: this one has the owner's number.
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    if poller.poll(0):
        os._exit(0)
    try:
        yield
    finally:
        fcntl.fcntl(owner, fcntl.F_SETFL, flags & ~os.O_ASYNC)


def _printed() -> tuple[bytes, bytes]:
    """Return what this process has printed so far, where it prints into files."""
    found = []
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        try:
            found.append(os.pread(descriptor, _MOST_PRINTED_BYTES, 0))
        except OSError:
            found.append(b"")
    return found[0], found[1]


if __name__ == "__main__":
    _sockets = [socket.socket(fileno=int(word)) for word in sys.argv[1:3]]
    forked = serve(*_sockets, num_clients=int(sys.argv[3]))
    if forked is None:
        os._exit(0)
    forked.run()
