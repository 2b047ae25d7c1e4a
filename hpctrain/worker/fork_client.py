"""What a launcher starts in a rank's place: ``fork_client.py SOCKET SECONDS PYTHON ARGUMENTS...``.

It asks the fork server of its node (`hpctrain.worker.fork_server`) for a process in the state that
this one was started in, and stays as the launcher's child: it passes signals on, and ends as the
rank ends. Where there is no server, or it refuses, it becomes the rank itself by ``execv``.

It runs once a rank before anything is shared, so it is a file of its own, started with ``python -I
-S``, and imports nothing but modules written in C, and `os`.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import sys

# As in hpctrain.worker.fork_server.
_READY, _FORKED, _ENDED = b"R", b"F", b"E"
_STATUS_BYTES = 4
_CREDENTIALS_BYTES = 12
_UNKNOWN_END = 1
_NOT_PASSED_ON = frozenset(
    [
        *(_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD, _signal.SIGPIPE),
        # A process stops by these itself; a rank has no terminal.
        *(_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU),
        # A defect of this process.
        *(_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT),
        *(_signal.SIGTRAP, _signal.SIGSYS),
    ]
)


def main(argv: list[str]) -> None:
    """Become the proxy of a rank that was forked, or the rank itself. Not collective."""
    name, seconds, command = argv[0], float(argv[1]), argv[2:]
    asked = _ask(name, seconds)
    if asked is None:
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            # Python ignores them, and what it executes would inherit that.
            _signal.signal(number, _signal.SIG_DFL)
        os.execv(command[0], command)
    _end_as(_watch(*asked))


def _ask(name: str, seconds: float) -> tuple[_socket.socket, int] | None:
    """Return the connection to the server and a pidfd of the rank, or None if there is none."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect("\0" + name)
        if not _is_own(sock) or sock.recv(1) != _READY:
            return None
        # From here on the server acts at once, and nothing is taken back.
        sock.settimeout(None)
        pmi = _pmi_descriptor()
        passed = [0, 1, 2] if pmi is None else [0, 1, 2, pmi]
        if sock.fileno() in passed:
            # In the place of a stream that was closed, for which the server refuses.
            passed = [sock.fileno()]
        sock.sendmsg(
            [b"A"],
            [
                (
                    _socket.SOL_SOCKET,
                    _socket.SCM_RIGHTS,
                    b"".join(number.to_bytes(4, sys.byteorder) for number in passed),
                )
            ],
        )
        answer, extra, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(4))
        if answer != _FORKED or not extra:
            return None
        if pmi is not None:
            # The launcher sees the end of the rank by the end of this connection.
            os.close(pmi)
        return sock, int.from_bytes(extra[0][2][:4], sys.byteorder)
    except (OSError, ValueError):
        return None


def _is_own(sock: _socket.socket) -> bool:
    content = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    return int.from_bytes(content[4:8], sys.byteorder) == os.getuid()


def _pmi_descriptor() -> int | None:
    value = os.environ.get("PMI_FD")  # noqa: TID251
    return None if value is None else int(value)


def _watch(sock: _socket.socket, pidfd: int) -> int | None:
    """Pass signals on until the rank ends; return its wait status, or None if it is not known."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # Otherwise one that comes just before poll() would wait for the next event.
    _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def pass_on(number: int, _: object) -> None:
        try:
            _signal.pidfd_send_signal(pidfd, number)
        except OSError:
            # It has just ended.
            pass

    for number in set(_signal.valid_signals()) - _NOT_PASSED_ON:
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, pass_on)
    poller = select.poll()
    for descriptor in (sock.fileno(), reading):
        poller.register(descriptor, select.POLLIN)
    received = b""
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == reading:
                os.read(reading, 4096)
                continue
            if descriptor == pidfd:
                return None
            try:
                data = sock.recv(64)
            except OSError:
                data = b""
            received += data
            if received[:1] == _ENDED and len(received) > _STATUS_BYTES:
                return int.from_bytes(received[1 : 1 + _STATUS_BYTES], sys.byteorder)
            if not data:
                # The server has died; its ranks live on.
                poller.unregister(sock.fileno())
                poller.register(pidfd, select.POLLIN)


def _end_as(status: int | None) -> None:
    if status is None:
        text = "hpctrain: the fork server of this node has ended: how this rank ended is unknown\n"
        os.write(2, text.encode())
        os._exit(_UNKNOWN_END)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if os.WCOREDUMP(status):
            import resource

            # The rank has dumped its own.
            resource.setrlimit(
                resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
            )
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1:])
