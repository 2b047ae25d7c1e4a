"""`SlotJob`: what one connection of an executor has started in the step of a slot."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from hpctrain import environ, linux
from hpctrain.control.wire import Frame, FrameSocket, ProtocolError, encode_frame
from hpctrain.execute.fork_server import ForkServers
from hpctrain.execute.offered_fork_server import await_forks
from hpctrain.execute.process import descendants, process_start_time
from hpctrain.worker.parent_death import mark

_READ_BYTES = 2**16
_MOST_PENDING_BYTES = 2**20
_NO_SERVER = "none"
OF_RANKS = frozenset([signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
"""Signals that Slurm sends to every process of a step, and that only ranks are to act on."""


class SlotJob:
    """A process that an executor has asked for, by a connection that is its own.

    Its output goes there, and its end. With the end of the connection it is killed.

    Parameters
    ----------
    client
        Connected to the executor.
    selector
        Calls back what is registered.
    start
        Starts what a frame asks for.
    """

    def __init__(
        self,
        client: FrameSocket,
        selector: selectors.BaseSelector,
        start: Callable[[SlotJob, Frame], None],
    ) -> None:
        self._client, self._selector, self._begin = client, selector, start
        self._pid = 0
        self._pidfd: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output: int | None = None
        self._is_paused = False
        self._await_ranks: Callable[[], object] = lambda: None
        self._server: int | None = None
        self._begun = 0
        self.is_over = False
        """Whether the executor is gone, and so is what it has asked for."""
        selector.register(client, selectors.EVENT_READ, self._serve)

    @property
    def has_more(self) -> bool:
        """Whether something waits to be sent."""
        return not self.is_over and self._client.pending_bytes > 0

    @property
    def _is_behind(self) -> bool:
        """Whether the executor takes less than the process prints."""
        return self._client.pending_bytes > _MOST_PENDING_BYTES

    @property
    def ranks_since(self) -> float:
        """When the launcher of its ranks has begun, in clock ticks since boot; ``inf`` without."""
        return math.inf if self._process is None or self._pidfd is None else self._begun

    def processes(self) -> set[int | None]:
        """Return the processes that it needs, as far as they are known."""
        if self._pidfd is None:
            return set()
        return {self._pid, self._server, *descendants(self._pid)}

    def flush(self) -> None:
        """Send what can be sent without waiting."""
        if self.is_over:
            return
        self._client.flush()
        if self._output is not None and self._is_paused and not self._is_behind:
            self._is_paused = False
            self._selector.register(self._output, selectors.EVENT_READ, self._pass_on)

    def fork(self, let_go: Callable[[], None]) -> bool:
        """Fork this process, with an output of its own; return whether this is the fork.

        Parameters
        ----------
        let_go
            Closes in the fork what belongs to this process.
        """
        reading, writing = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if pid == 0:
            try:
                os.setsid()
                os.close(reading)
                let_go()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for number in (1, 2):
                    os.dup2(writing, number)
                os.close(writing)
            except BaseException:
                # It must not go on in the place of its parent.
                os._exit(1)
            return True
        os.close(writing)
        self._watch(pid, reading)
        return False

    def execute(
        self, asked: Mapping[str, Any], environment: Mapping[str, str], forks: ForkServers
    ) -> None:
        """Start a launcher, or what it has on this node. Ranks are forked here.

        Where there is no server, each fork client is the rank itself.
        """
        with _ignoring(OF_RANKS):
            name = forks.offer(environment)
        if name:
            self._server = forks.pid
            self._await_ranks = partial(await_forks, name, asked["command"])
        reading, writing = os.pipe()
        try:
            # hydra would end with each of them, and its ranks too (seen with MPICH 5).
            signal.pthread_sigmask(signal.SIG_BLOCK, OF_RANKS)
            self._process = subprocess.Popen(
                asked["argv"],
                env={
                    **environment,
                    environ.SLOT_SERVER: name or _NO_SERVER,
                    environ.SLOT_HOST: mark(),
                },
                cwd=asked["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            self._refuse(f"it cannot start {asked['argv'][0]}: {error.strerror}")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_RANKS)
            os.close(writing)
        self._watch(self._process.pid, reading, reasons=forks.take_reasons())

    def abandon(self) -> None:
        """Close its descriptors in a fork of this process, which goes on with them."""
        self._client.close()
        for descriptor in (self._pidfd, self._output):
            if descriptor is not None:
                os.close(descriptor)

    def _watch(self, pid: int, output: int, *, reasons: Sequence[str] = ()) -> None:
        try:
            pidfd = linux.pidfd_open(pid)
        except OSError:
            os.close(output)
            os.kill(pid, signal.SIGKILL)
            self._collect(pid)
            raise
        self._pid, self._output, self._pidfd = pid, output, pidfd
        self._begun = process_start_time(pid) or 0
        os.set_blocking(output, False)
        self._selector.register(output, selectors.EVENT_READ, self._pass_on)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._reap)
        self._send("started", pid=pid, reasons=[*reasons])

    def _refuse(self, reason: str) -> None:
        self._send("refused", reason=reason)

    def _send(self, op: str, body: bytes = b"", **details: object) -> None:
        self._client.post(encode_frame({"op": op, **details}, body))

    def _serve(self, _: int) -> None:
        # What else was ready in the same turn may have ended it.
        if self.is_over:
            return
        try:
            frames = self._client.receive()
            for frame in frames:
                self._obey(frame)
        except (ProtocolError, KeyError, ValueError):
            self._client.closed = True
        except OSError as error:
            # Of descriptors or processes, none is left. Other trials are in this step, too.
            self._refuse(f"it cannot start a process: {error.strerror}")
            self._client.closed = True
        if self._client.closed:
            self._close()

    def _obey(self, frame: Frame) -> None:
        if frame.op == "start" and not self._pid:
            self._begin(self, frame)
        elif frame.op == "end" and self._pidfd is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)
        elif frame.op == "kill":
            self._kill()

    def _pass_on(self, _: int) -> None:
        """Send the output of the process, as far as the executor takes it."""
        if self._output is None:
            return
        if self._is_behind:
            # Ready all the time, it would keep this process busy.
            self._selector.unregister(self._output)
            self._is_paused = True
            return
        try:
            printed = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return
        if printed:
            self._send("output", printed)
        else:
            self._close_output()

    def _close_output(self) -> None:
        if self._output is not None:
            if not self._is_paused:
                self._selector.unregister(self._output)
            os.close(self._output)
            self._output = None

    def _reap(self, _: int) -> None:
        if self._pidfd is None:
            return
        status = self._wait()
        # They are no descendants of the launcher, and end once it is gone.
        self._await_ranks()
        with suppress(OSError):
            while self._output is not None and (printed := os.read(self._output, _READ_BYTES)):
                self._send("output", printed)
        self._close_output()
        self._send("ended", status=status)

    def _wait(self) -> int:
        """Collect the exit status of the process, which has ended or is about to."""
        assert self._pidfd is not None
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        return self._collect(self._pid)

    def _collect(self, pid: int) -> int:
        if self._process is not None:
            return self._process.wait()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _kill(self) -> None:
        if self._pidfd is None:
            return
        for pid in (self._pid, *descendants(self._pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _close(self) -> None:
        """End the process of an executor that is gone."""
        self._selector.unregister(self._client)
        self._client.close()
        if self._pidfd is not None:
            self._kill()
            self._wait()
            self._await_ranks()
        self._close_output()
        self.is_over = True


@contextmanager
def _ignoring(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Let processes that are started meanwhile ignore signals."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
