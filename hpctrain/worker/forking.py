"""`ForkServer`: forks a rank for each client that connects."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain import linux, timeouts
from hpctrain.control import local_socket
from hpctrain.worker.fork_protocol import (
    ASK_END,
    ASK_IDLE,
    ASK_RANKS,
    AWAIT_END,
    ENDED,
    FORKED,
    IDLE,
    READY,
    STATUS,
    refuse,
    tell,
)
from hpctrain.worker.forked import ForkedRank, explain_difference, rank_command
from hpctrain.worker.launched import Launched, apply_launched, read_launched
from hpctrain.worker.parent_death import end_with
from hpctrain.worker.preload import other_threads
from hpctrain.worker.process_state import is_exiting

_MOST_ENDS = 4096
_MOST_DESCRIPTORS = 8
_MOST_COMMAND_BYTES = 2**16
_GO = b"G"
_Name = tuple[int, tuple[str, ...]]


@dataclass(kw_only=True)
class _Rank:
    """A rank that lives."""

    pid: int
    pidfd: int
    client: socket.socket | None
    """None once it is gone."""
    ends_itself: bool = False
    """Whether it was exiting when its client went."""
    command: tuple[str, ...]
    """The same for all ranks of an attempt, and for no others: it names the socket of the attempt,
    which is new for each."""

    @property
    def name(self) -> _Name:
        """What no process has that this server has not forked, whatever its number is."""
        return self.pid, self.command


class ForkServer:
    """Forks ranks for the clients that connect.

    Parameters
    ----------
    listener
        Where they connect.
    owner
        Connected to the process that has started this one.
    before
        The environment before the first import.
    printed
        What the imports have printed on standard output and error.
    """

    def __init__(
        self,
        listener: socket.socket,
        owner: socket.socket,
        *,
        before: Mapping[str, str],
        printed: tuple[bytes, bytes],
    ) -> None:
        self._listener: socket.socket | None = listener
        self._owner: socket.socket | None = owner
        self._before = before
        self._printed = printed
        self._cwd = os.getcwd()
        self._wants_idle = False
        self._clients: dict[int, socket.socket] = {}
        self._ranks: dict[int, _Rank] = {}
        self._rank_of: dict[int, _Rank] = {}
        self._awaited: list[tuple[socket.socket, tuple[str, ...]]] = []
        self._ends: dict[_Name, int] = {}
        self._asked: list[tuple[socket.socket, _Name]] = []
        self._poller = select.poll()
        for sock in (listener, owner):
            self._poller.register(sock, select.POLLIN)

    def run(self) -> ForkedRank | None:
        """Serve until the owner and all ranks are gone; in a rank, return what it is to do."""
        while self._owner is not None or self._ranks:
            for descriptor, _ in self._poller.poll():
                if self._owner is not None and descriptor == self._owner.fileno():
                    self._listen_to_owner()
                elif self._listener is not None and descriptor == self._listener.fileno():
                    self._accept(self._listener)
                elif descriptor in self._clients:
                    if (forked := self._answer(self._clients[descriptor])) is not None:
                        return forked
                elif descriptor in self._ranks:
                    self._reap(self._ranks[descriptor])
                elif descriptor in self._rank_of:
                    self._look_at_client(self._rank_of[descriptor])
        return None

    def _tell(self, **content: Any) -> None:
        if self._owner is not None:
            tell(self._owner, **content)

    def _tell_refusal(self, reason: str) -> None:
        # The owner reads once all ranks have started. That some were refused is enough for it.
        if self._owner is not None:
            tell(self._owner, flags=socket.MSG_DONTWAIT, refused=reason)

    def _listen_to_owner(self) -> None:
        assert self._owner is not None
        try:
            received = self._owner.recv(64)
        except OSError:
            received = b""
        if received:
            if ASK_RANKS in received:
                self._tell(ranks=len(self._ranks))
            self._wants_idle = ASK_IDLE in received or self._wants_idle
            self._tell_if_idle()
            return
        self._forget(self._owner)
        if self._listener is not None:
            self._forget(self._listener)
        for client in self._clients.values():
            self._forget(client)
        self._clients.clear()
        self._owner = self._listener = None

    def _tell_if_idle(self) -> None:
        if self._wants_idle and not self._ranks:
            self._wants_idle = False
            self._tell(idle=True)

    def _accept(self, listener: socket.socket) -> None:
        if (sock := local_socket.accept(listener)) is None:
            return
        try:
            sock.sendall(READY)
        except OSError:
            sock.close()
            return
        # Of a descriptor that was closed and opened again since poll() it may be said too early.
        sock.setblocking(False)
        self._clients[sock.fileno()] = sock
        self._poller.register(sock, select.POLLIN)

    def _answer(self, client: socket.socket) -> ForkedRank | None:
        """Fork the rank of a client that has asked; return what it is to do, in the rank alone."""
        try:
            asked, descriptors, _, _ = socket.recv_fds(client, 1, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError:
            asked, descriptors = b"", []
        self._poller.unregister(client)
        del self._clients[client.fileno()]
        if not asked:
            _close(*descriptors)
            client.close()
            return None
        if asked in (AWAIT_END, ASK_END):
            self._await_end(client, asked)
            return None
        try:
            launched = read_launched(local_socket.peer_pid(client))
            answer = self._why_not(launched, descriptors)
        except (OSError, ValueError, KeyError) as error:
            answer = f"what the launcher has started cannot be looked at: {error}"
        else:
            if not answer:
                forked = self._fork(client, launched, descriptors)
                if isinstance(forked, ForkedRank):
                    return forked
                answer = forked
        _close(*descriptors)
        if answer:
            refuse(client, answer)
            self._tell_refusal(answer)
        return None

    def _await_end(self, client: socket.socket, asked: bytes) -> None:
        """Send an executor that its ranks have ended, or how one of them has, once that is so."""
        try:
            # It came with the byte before it.
            text = client.recv(_MOST_COMMAND_BYTES).decode()
            if asked == ASK_END:
                pid, *command = text.split("\0")
                self._asked.append((client, (int(pid), tuple(command))))
            else:
                self._awaited.append((client, tuple(text.split("\0"))))
        except (OSError, ValueError):
            client.close()
            return
        self._tell_awaited()

    def _tell_awaited(self) -> None:
        alive = {rank.command for rank in self._ranks.values()}
        for awaited in [each for each in self._awaited if each[1] not in alive]:
            self._awaited.remove(awaited)
            with awaited[0] as client, contextlib.suppress(OSError):
                client.sendall(IDLE)
        names = {rank.name for rank in self._ranks.values()}
        for asked in [each for each in self._asked if each[1] not in names]:
            self._asked.remove(asked)
            with asked[0] as client, contextlib.suppress(OSError):
                if (status := self._ends.get(asked[1])) is not None:
                    client.sendall(STATUS.pack(status))

    def _why_not(self, launched: Launched, descriptors: Sequence[int]) -> str:
        if len(descriptors) != 3 + ("PMI_FD" in launched.environment):
            return "the launcher has closed standard streams of its processes"
        if others := other_threads():
            # After the imports there was none: a handler of os.register_at_fork, for one.
            return (
                f"a thread has started in the fork server ({', '.join(others[:4])}), which would "
                f"be lost in ranks"
            )
        return explain_difference(
            launched, read_launched(os.getpid()), before=self._before, cwd=self._cwd
        )

    def _fork(
        self, client: socket.socket, launched: Launched, descriptors: list[int]
    ) -> str | ForkedRank:
        """Fork a rank; return why that cannot be, or in the rank alone what it is to do."""
        server = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            ours, theirs = socket.socketpair()
            with contextlib.ExitStack() as unless_forked:
                for sock in (ours, theirs):
                    unless_forked.callback(sock.close)
                pid = os.fork()
                unless_forked.pop_all()
        except OSError as error:
            return f"the fork server cannot fork: {error.strerror}"
        if pid == 0:
            ours.close()
            client.close()
            return self._become_rank(theirs, launched, descriptors, parent=server)
        theirs.close()
        with ours:
            ours.settimeout(timeouts.FORKED_RANK_S)
            try:
                reason = ours.recv(4096).decode(errors="replace")
            except OSError:
                limit = timeouts.describe(timeouts.FORKED_RANK_S)
                reason = f"a forked rank was not set up within {limit}"
            try:
                pidfd = linux.pidfd_open(pid) if reason == _GO.decode() else -1
            except OSError as error:
                pidfd, reason = -1, f"the fork server cannot watch a rank: {error.strerror}"
            if pidfd == -1:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return reason or "a forked rank ended before it was set up"
            try:
                socket.send_fds(client, [FORKED], [pidfd])
                ours.sendall(_GO)
            except OSError:
                # The client has died. The rank reads no word to go on, and leaves.
                os.kill(pid, signal.SIGKILL)
        rank = _Rank(pid=pid, pidfd=pidfd, client=client, command=rank_command(launched))
        self._ranks[pidfd] = self._rank_of[client.fileno()] = rank
        self._poller.register(pidfd, select.POLLIN)
        self._poller.register(client, select.POLLIN)
        return ""

    def _become_rank(
        self, server: socket.socket, launched: Launched, descriptors: list[int], *, parent: int
    ) -> ForkedRank:
        """Become a rank, up to the point where it can no longer be refused."""
        try:
            os.setsid()
            # Until it is connected nothing else ends it if the server and its client are killed.
            end_with(parent)
            for sock in filter(None, (self._listener, self._owner, *self._clients.values())):
                sock.close()
            for waiting, _ in (*self._awaited, *self._asked):
                waiting.close()
            for rank in self._ranks.values():
                os.close(rank.pidfd)
                if rank.client is not None:
                    rank.client.close()
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            reason = apply_launched(launched)
            server.sendall(reason.encode() or _GO)
            if reason or server.recv(1) != _GO:
                os._exit(1)
            server.close()
        except BaseException:
            # No word of it can be trusted to reach anybody: the server has a timeout.
            os._exit(1)
        return ForkedRank(
            launched=launched,
            pmi=descriptors[3] if len(descriptors) > 3 else None,
            before=self._before,
            printed=self._printed,
        )

    def _reap(self, rank: _Rank) -> None:
        _, status = os.waitpid(rank.pid, 0)
        del self._ranks[rank.pidfd]
        self._poller.unregister(rank.pidfd)
        os.close(rank.pidfd)
        if rank.client is not None or rank.ends_itself:
            self._ends[rank.name] = status
            if len(self._ends) > _MOST_ENDS:
                del self._ends[next(iter(self._ends))]
        if rank.client is not None:
            with contextlib.suppress(OSError):
                rank.client.sendall(ENDED + STATUS.pack(status))
            self._drop_client(rank)
        self._tell_if_idle()
        self._tell_awaited()

    def _look_at_client(self, rank: _Rank) -> None:
        """End a rank whose client is gone: the launcher, or who ended it, means the rank."""
        assert rank.client is not None
        try:
            if rank.client.recv(64):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        if os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # The launcher has ended the client because of that.
            self._reap(rank)
            return
        # A rank of much memory exits for a while: the launcher sees its descriptors close first.
        rank.ends_itself = is_exiting(rank.pid)
        self._drop_client(rank)
        # With what it has started, as a launcher would; it leads a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)

    def _drop_client(self, rank: _Rank) -> None:
        assert rank.client is not None
        del self._rank_of[rank.client.fileno()]
        self._forget(rank.client)
        rank.client = None

    def _forget(self, sock: socket.socket) -> None:
        self._poller.unregister(sock)
        sock.close()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
