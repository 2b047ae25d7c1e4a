"""`OfferedForkServer`: a fork server of another process, for the ranks of many runs."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain import timeouts
from hpctrain.control import local_socket
from hpctrain.control.link import LinkTimeoutError
from hpctrain.execute.rank_forks import RankCommand, RankForks, client_argv, system_python
from hpctrain.worker.fork_protocol import ASK_END, AWAIT_END, IDLE, STATUS


class OfferedForkServer(RankForks):
    """What lets the ranks of an executor be forked by a server that is not its own.

    Once the server is gone, ranks start as if there had been none.

    Parameters
    ----------
    name
        Of the server's socket.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._commands: list[tuple[str, ...]] = []

    def start(self) -> None:
        """Do nothing: it is there."""

    def _argv_of(self, rank: RankCommand) -> list[str]:
        # The server compares the environment with its own.
        self._commands.append(tuple(rank.argv))
        python = system_python() if self._trusts_nodes else ""
        return client_argv(self._name, rank.argv, client=rank.client, python=python)

    def await_idle(self, timeout_s: float = timeouts.FORKED_RANKS_END_S) -> bool:
        """Wait until no forked rank of this executor is left; return whether that is so.

        Where the server is gone, it is not known. Its ranks are ended with their clients.
        """
        return all(await_forks(self._name, command, timeout_s) for command in self._commands)

    def await_end(self, pid: int) -> int | None:
        """Wait until a rank has ended; return its wait status, or None if that is not known."""
        # Of the attempt, which was the last to ask.
        return ask_end(self._name, self._commands[-1], pid) if self._commands else None

    def close(self) -> None:
        """Do nothing: it is of other runs, too."""


def await_forks(
    name: str, command: Sequence[str], timeout_s: float = timeouts.FORKED_RANKS_END_S
) -> bool:
    """Wait until no rank of a command is left; return whether that is so. Not collective.

    Parameters
    ----------
    name
        Of the socket of the server that has forked them. Where it is gone, it is not known.
    command
        Of an ordinary rank.
    """
    try:
        with local_socket.connect(name, timeout_s=0) as sock:
            sock.settimeout(timeout_s)
            # The server sends a byte when it is ready, and one once they have ended.
            sock.recv(1)
            sock.sendall(AWAIT_END + "\0".join(command).encode())
            return sock.recv(1) == IDLE
    except (LinkTimeoutError, OSError):
        return False


def ask_end(
    name: str,
    command: Sequence[str],
    pid: int,
    timeout_s: float = timeouts.FORKED_RANKS_END_S,
) -> int | None:
    """Wait until a rank has ended; return its wait status, or None if that is not known.

    Not collective.

    Parameters
    ----------
    name
        Of the socket of the server that has forked it.
    command
        Of the rank, without which it may be any process with its number.
    pid
        Of the rank.
    """
    try:
        with local_socket.connect(name, timeout_s=0) as sock:
            sock.settimeout(timeout_s)
            # The server sends a byte when it is ready.
            sock.recv(1)
            sock.sendall(ASK_END + "\0".join((str(pid), *command)).encode())
            content = sock.recv(STATUS.size)
    except (LinkTimeoutError, OSError):
        return None
    return int(STATUS.unpack(content)[0]) if len(content) == STATUS.size else None
