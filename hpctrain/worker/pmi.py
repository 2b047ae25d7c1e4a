"""Start the MPICH of the PyPI wheel under ``srun --mpi=pmi2``, whose lines have a limit.

Slurm's pmi2 plugin offers values of 1024 characters, but reads lines of 1023, with the name of the
key before the value (Slurm 22.05: "mpi/pmi2: invalid client request"). MPICH compresses zeros in
what it sends, so it often gets by. But over UCX it sends 4 KiB from where an address of some
hundred bytes lies, whatever the heap holds behind it; if that cannot be compressed, the start fails
or hangs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading

from hpctrain import environ
from hpctrain.worker.own_mpich import is_own_mpich

_OFFERED = re.compile(rb"vallen_max=\d+")
_TAKEN = b"vallen_max=512"
_CHUNK_BYTES = 65536


def short_values() -> contextlib.AbstractContextManager[object]:
    """Let the plugin seem to take short values only, while MPI starts, if it is that plugin.

    Not collective. Python's lock must be free meanwhile: the proxy is a thread. With another
    library, or another way to start ranks, nothing is done.
    """
    descriptor = environ.variable("PMI_FD")
    if descriptor is None or environ.variable("SLURM_STEP_ID") is None or not is_own_mpich():
        return contextlib.nullcontext()
    return _Proxy(int(descriptor))


class _Proxy:
    """Stands between a PMI client and its server for a while, and reports a lower limit to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._server = socket.socket(fileno=os.dup(descriptor))
        ours, self._client = socket.socketpair()
        os.dup2(ours.fileno(), descriptor)
        ours.close()
        self._thread = threading.Thread(target=self._forward, name="hpctrain-pmi", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        # It is a protocol of questions and answers: between two questions nothing is under way.
        os.dup2(self._server.fileno(), self._descriptor)
        self._thread.join()
        self._server.close()
        self._client.close()

    def _forward(self) -> None:
        try:
            self._forward_until_closed()
        except OSError:
            # Slurm ends the step: a broken pipe, or a reset.
            pass
        finally:
            # Otherwise MPI would wait for an answer for ever.
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def _forward_until_closed(self) -> None:
        # select() cannot wait for descriptors above 1023 (man 2 select).
        poller = select.poll()
        sides = {side.fileno(): side for side in (self._server, self._client)}
        for descriptor in sides:
            poller.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                source = sides[descriptor]
                data = source.recv(_CHUNK_BYTES)
                if not data:
                    # MPI has started and dup2 closed the client's end, or Slurm ends the step.
                    return
                if source is self._server:
                    self._client.sendall(_OFFERED.sub(_TAKEN, data))
                else:
                    self._server.sendall(data)
