"""`ExecutorTemplate`: a process that has imported what an executor needs, and forks executors.

``python -m hpctrain.launch.executor_template DESCRIPTOR``. The imports take most of the time of an
executor of a short run, so a sweep makes them once. The process has one thread, opens nothing but
its socket, and ends when the other end is closed; what it has forked goes on.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hpctrain import environ, timeouts
from hpctrain.log import log
from hpctrain.worker.forked import show_command

_MODULE = "hpctrain.launch.executor_template"
_MOST_BYTES = 2**20
# Room for the command of an executor in the arguments of the process, whose forks show it there.
_PADDING = 2048


class ExecutorTemplate:
    """Forks executors, as long as its process lives. It begins with the first one."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_over = False

    def fork(
        self, argv: Sequence[str], *, environment: Mapping[str, str], stdin: int, output: int
    ) -> int | None:
        """Fork a process that does what a command would; return its pid, or None if it cannot.

        Not collective.

        Parameters
        ----------
        argv
            ``python -u -m hpctrain.launch.background`` with its arguments.
        environment
            Of the process.
        stdin, output
            Descriptors that it has as its own.
        """
        if self._is_over:
            return None
        request = {"argv": list(argv), "environment": dict(environment), "cwd": os.getcwd()}
        try:
            if self._socket is None:
                self._socket = _start()
            socket.send_fds(self._socket, [json.dumps(request).encode()], [stdin, output])
            return int(self._socket.recv(64))
        except (OSError, ValueError) as error:
            # A process that is forked after all finds its standard input closed, and ends.
            log(f"warning: executors begin without a template from here on: {error}")
            self.close()
            return None

    def close(self) -> None:
        """Let the process end. Not collective. What it has forked goes on."""
        self._is_over = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _start() -> socket.socket:
    # Each message is received as a whole.
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        ours.settimeout(timeouts.EXECUTOR_TEMPLATE_S)
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", _MODULE, str(its.fileno()), "-" * _PADDING],
                env=environ.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # An executor that is started without it says the same in its log.
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    # Nothing else collects its exit status.
    threading.Thread(target=process.wait, daemon=True).start()
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork a process for each request, until there are no more; return in each of them."""
    from hpctrain.launch import background

    # The kernel collects the exit status of those that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    show_command(sys.orig_argv[:-1])
    # What is there now is not written to by a collection in each of them.
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(json.loads(message), *descriptors)
            sys.exit(background.main(sys.argv))
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(BrokenPipeError):
            requests.send(str(pid).encode())


def _become(request: Mapping[str, object], stdin: int, output: int) -> None:
    """Let this process be as one that was started with a command."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for source, descriptor in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(source, descriptor)
    os.close(stdin)
    os.close(output)
    argv, wanted = request["argv"], request["environment"]
    assert isinstance(argv, list)
    assert isinstance(wanted, dict)
    environ.export({**dict.fromkeys(environ.environment()), **wanted})
    os.chdir(str(request["cwd"]))
    # As `python -u -m MODULE ARGUMENTS` has them.
    sys.orig_argv[:] = argv
    sys.argv[:] = argv[3:]
    show_command(argv)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
