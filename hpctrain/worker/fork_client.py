"""What a launcher starts in a rank's place: ``fork_client.py NAME SECONDS PATIENCE ASKED RANK...``.

It asks the fork server of its node (`hpctrain.worker.fork_server`) for a process in the state that
this one was started in, and stays as the launcher's child: it passes signals on, and ends as the
rank ends. Where there is no server, or it refuses, it becomes the rank itself by ``execv``.

NAME is that of the server's socket, SECONDS how long its imports may take, and RANK the command of
an ordinary rank. On one machine the executor has started the server. In a step of Slurm, where
ASKED is what the server is to import, the first rank of each node starts one, inside the step, and
the others wait up to PATIENCE seconds for it. In the step of a slot (`hpctrain.execute.slot_host`)
ASKED is ``slot``, and the server is there: its name is in a variable, since each node has another
one and all ranks the same command. Signals are blocked that are not for the launcher.

It runs once a rank before anything is shared, so it is a file of its own, started with ``python -I
-S``, and imports nothing but modules written in C, and `os`. Where a node has a Python of its own,
that runs it (`hpctrain.execute.rank_forks`), from 3.9 on, and the shared filesystem is not asked.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import sys
import time

# As in hpctrain.worker.fork_protocol.
_READY, _FORKED, _ENDED, _REFUSED = b"R", b"F", b"E", b"X"
_STATUS_BYTES = 4
_CREDENTIALS_BYTES = 12
_TEXT_BYTES = 4096
_BACKLOG = 4096
_RETRY_INTERVAL_S = 0.01
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
# By these a process is a rank, and the server is none.
_OF_RANK_PREFIXES = ("PMI", "OMPI_COMM_", "PRTE_", "HYD", "MPI_LOCAL", "MPIR_", "MV2_COMM_")
_OF_RANK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID")
# As in hpctrain.worker.task_cgroups.
_OF_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "SLURM_STEP_GPUS")
# As in hpctrain.environ.
_NOT_FORKED = "HPCTRAIN_NOT_FORKED"
_SLOT_SERVER = "HPCTRAIN_SLOT_SERVER"
# As in hpctrain.execute.fork_server.
_PADDING = 2048
# as in hpctrain.execute.rank_forks.
_IN_SLOT = "slot"


def main(argv: list[str]) -> None:
    """Become the proxy of a rank that was forked, or the rank itself. Not collective."""
    name, seconds, patience, asked, *command = argv
    if asked == _IN_SLOT:
        asked = ""
        # An ordinary rank does not have it.
        name = os.environ.pop(_SLOT_SERVER, name)  # noqa: TID251
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _signal.valid_signals())
    if asked:
        answer = _ask_in_step(name, float(seconds), float(patience), asked, command[0])
    else:
        answer = _ask(name, float(seconds), 0.0)
    if not isinstance(answer, str):
        _end_as(_watch(*answer))
    elif asked and answer:
        os.environ[_NOT_FORKED] = answer  # noqa: TID251
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        # Python ignores them, and what it executes would inherit that.
        _signal.signal(number, _signal.SIG_DFL)
    os.execv(command[0], command)


def _ask(name: str, seconds: float, patience: float) -> "tuple[_socket.socket, int] | str":
    """Return the connection to the server and a pidfd of the rank, or why there is none."""
    try:
        sock = _connect(name, seconds, patience)
        if not _is_own(sock):
            return "a process of another user has taken the address of the fork server"
        if (answer := sock.recv(1)) != _READY:
            return _read_text(sock) if answer == _REFUSED else ""
        # From here on the server acts at once, and nothing is taken back.
        sock.settimeout(None)
        pmi = _pmi_descriptor()
        passed = [0, 1, 2] if pmi is None else [0, 1, 2, pmi]
        if sock.fileno() in passed:
            # In the place of a stream that was closed, for which the server refuses.
            passed = [sock.fileno()]
        numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in passed)
        sock.sendmsg([b"A"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
        answer, extra, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(4))
        if answer != _FORKED or not extra:
            return _read_text(sock) if answer == _REFUSED else ""
        if pmi is not None:
            # The launcher sees the end of the rank by the end of this connection.
            os.close(pmi)
        return sock, int.from_bytes(extra[0][2][:4], sys.byteorder)
    # The latter is none of the former before Python 3.10.
    except (TimeoutError, _socket.timeout):
        return f"the imports of the fork server took longer than {seconds:g} s"
    except ConnectionRefusedError:
        return f"the first rank of its node had no fork server after {patience:g} s"
    except (OSError, ValueError):
        # The server died; its parent reports why.
        return ""


def _connect(name: str, seconds: float, patience: float) -> _socket.socket:
    # Not own_time.Deadline, here and below: nothing of hpctrain is imported.
    deadline = time.monotonic() + patience
    while True:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(seconds)
        try:
            sock.connect("\0" + name)
            return sock
        except (ConnectionRefusedError, BlockingIOError):
            # It does not listen yet, or more ranks than the kernel lets wait have come at once.
            if time.monotonic() >= deadline:
                raise
        sock.close()
        time.sleep(_RETRY_INTERVAL_S)


def _read_text(sock: _socket.socket) -> str:
    text = b""
    while received := sock.recv(_TEXT_BYTES):
        text += received
    return text.decode(errors="replace")


def _ask_in_step(
    name: str, seconds: float, patience: float, asked: str, python: str
) -> "tuple[_socket.socket, int] | str":
    """Ask the server of this node and step; the first rank of a node starts it before."""
    try:
        local_rank, size = place_on_node(dict(os.environ))  # noqa: TID251
    except (KeyError, ValueError):
        return "the launcher does not say which ranks share a node"
    if size < 2:
        # Its own import is the only one of the node.
        return ""
    try:
        for stream in range(3):
            os.fstat(stream)
    except OSError:
        return "the launcher has closed standard streams of its processes"
    if may_have_own_gpus():
        return (
            "Slurm puts ranks into cgroups of their own, which may limit the GPUs of each: "
            "in version 2 of cgroups that cannot be seen"
        )
    # Nodes may share one machine.
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename  # noqa: TID251
    name = f"{name}.{node}"
    if local_rank > 0:
        return _ask(name, seconds, patience)
    try:
        server = _Server(name, python, asked, size)
    except OSError as error:
        return f"the fork server of a node cannot be started: {error.strerror}"
    answer = _ask(name, seconds, 0.0)
    if isinstance(answer, str):
        return server.end(answer, patience)
    server.keep()
    return answer


def place_on_node(environ: dict[str, str]) -> tuple[int, int]:
    """Return the number of a rank among those of its node, and how many these are. Pure.

    Raises
    ------
    KeyError, ValueError
        If the launcher does not say so.

    Examples
    --------
    >>> step = {"SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
    >>> place_on_node({**step, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})
    (1, 3)
    """
    if "MPI_LOCALRANKID" in environ:
        # hydra's; the variables of Slurm are those of its proxy.
        return int(environ["MPI_LOCALRANKID"]), int(environ["MPI_LOCALNRANKS"])
    local_rank, node = int(environ["SLURM_LOCALID"]), int(environ["SLURM_NODEID"])
    for part in environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, times = part.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return local_rank, int(count)
    raise ValueError("the node is not in SLURM_STEP_TASKS_PER_NODE")


def may_have_own_gpus() -> bool:
    """Return whether Slurm may have let this task alone use some GPUs. Not collective.

    The server would refuse it (`hpctrain.worker.task_cgroups`). But it would have imported for
    nothing.
    """
    if "MPI_LOCALRANKID" in os.environ:  # noqa: TID251
        # hydra has one task a node.
        return False
    if not any(os.environ.get(name) for name in _OF_GPUS):  # noqa: TID251
        return False
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    # Of version 2. What version 1 lets it use can be compared.
    parts = [part for line in lines if line.startswith("0::") for part in line.split("/")]
    return any(part.startswith("task_") and part[5:].isdigit() for part in parts)


class _Server:
    """The fork server that this process has started, as its child."""

    def __init__(self, name: str, python: str, asked: str, size: int) -> None:
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # Here, since clients may be quicker than its interpreter.
        listener.bind("\0" + name)
        listener.listen(_BACKLOG)
        self._owner, theirs = _socket.socketpair()
        # What its imports print: each rank prints it again.
        printed = [_memory_file(f"hpctrain-{stream}") for stream in ("stdout", "stderr")]
        self._errors = printed[1]
        passed = [listener.fileno(), theirs.fileno()]
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _become_server(python, passed, printed, size)
            except BaseException as error:
                os.write(self._errors, repr(error).encode(errors="replace"))
            os._exit(127)
        os.close(printed[0])
        listener.close()
        theirs.close()
        # What it sends is for an executor. Here it is not read, and must not fill the buffer.
        self._owner.shutdown(_socket.SHUT_RD)
        try:
            self._owner.sendall(asked.encode() + b"\n")
        except OSError:
            # It has ended already: so it is found.
            pass

    def keep(self) -> None:
        """Let it serve until this process ends."""
        self._owner.detach()

    def end(self, reason: str, patience: float) -> str:
        """Wait until it has ended, so that this process has no child; return why it did not serve.

        One that refuses does so to all ranks of the node before it ends.
        """
        self._owner.close()
        deadline = time.monotonic() + 2 * patience
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(_RETRY_INTERVAL_S)
        if reason:
            return reason
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _TEXT_BYTES, max(0, size - _TEXT_BYTES))
        last = text.decode(errors="replace").strip().splitlines()[-1:] or ["it was killed"]
        return f"the fork server of a node ended while it imported: {last[0]}"


def _become_server(python: str, passed: list[int], printed: list[int], size: int) -> None:
    # Of the launcher's process group it would die with the others, and could not end their ranks.
    os.setsid()
    for number in set(_signal.valid_signals()) - _NOT_PASSED_ON - {_signal.SIGIO}:
        # Slurm sends a signal for the step to every process of it.
        _signal.signal(number, _signal.SIG_IGN)
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *printed)):
        os.dup2(descriptor, number)
    for word in os.listdir("/proc/self/fd"):
        descriptor = int(word)
        if descriptor in passed:
            os.set_inheritable(descriptor, True)
        elif descriptor > 2:
            try:
                # The connection to the launcher is the rank's alone.
                os.close(descriptor)
            except OSError:
                # The one by which the directory was read.
                pass
    variables = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251
        if name not in _OF_RANK and not name.startswith(_OF_RANK_PREFIXES)
    }
    words = [*map(str, passed), str(size), "-" * _PADDING]
    os.execve(python, [python, "-m", "hpctrain.worker.fork_server", *words], variables)


def _is_own(sock: _socket.socket) -> bool:
    content = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    return int.from_bytes(content[4:8], sys.byteorder) == os.getuid()


def _pmi_descriptor() -> "int | None":
    value = os.environ.get("PMI_FD")  # noqa: TID251
    return None if value is None else int(value)


def _send_signal(pidfd: int, number: int) -> None:
    # As hpctrain.linux, for a Python that lacks it.
    if hasattr(_signal, "pidfd_send_signal"):
        _signal.pidfd_send_signal(pidfd, number)
        return
    import ctypes

    arguments = (424, pidfd, number, 0, 0)
    ctypes.CDLL(None).syscall(*map(ctypes.c_long, arguments))


def _memory_file(name: str) -> int:
    # As hpctrain.linux, for a Python that lacks it.
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    path = f"/dev/shm/{name}-{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def _watch(sock: _socket.socket, pidfd: int) -> "int | None":
    """Pass signals on until the rank ends; return its wait status, or None if it is not known."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # Otherwise one that comes just before poll() would wait for the next event.
    _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def pass_on(number: int, _: object) -> None:
        try:
            _send_signal(pidfd, number)
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


def _end_as(status: "int | None") -> None:
    if status is None:
        text = "hpctrain: the fork server of this node has ended: how this rank ended is unknown\n"
        os.write(2, text.encode())
        os._exit(_UNKNOWN_END)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if os.WCOREDUMP(status):
            import resource

            # The rank has dumped its own.
            _, hard = resource.getrlimit(resource.RLIMIT_CORE)
            resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1:])
