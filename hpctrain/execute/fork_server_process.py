"""`ForkServerProcess`: a process of `hpctrain.worker.fork_server` on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

from hpctrain import linux, timeouts
from hpctrain.control import local_socket
from hpctrain.own_time import Deadline
from hpctrain.worker.import_stamps import stamp

# Room for the command of a rank in the arguments of the server, whose forks show it there.
_PADDING = 2048
_LINE_BYTES = 2**16
_BACKLOG = 4096
_LOOK_INTERVAL_S = 0.05
# What a server may have more in memory than when it was ready: each rank would begin with it.
_MOST_GROWN, _MOST_GROWN_BYTES = 1.5, 64 * 2**20


class ForkServerProcess:
    """A fork server, from its start to its end.

    Parameters
    ----------
    asked
        What it is to import.
    environment
        Its whole environment.
    """

    def __init__(self, asked: Mapping[str, object], environment: Mapping[str, str]) -> None:
        self.name = local_socket.new_socket_name()
        self.unusable = ""
        """Why it has refused to serve; empty if it has not."""
        self._refusals: list[str] = []
        self._is_idle = True
        self._counts: list[int] = []
        self._stamps: dict[str, int] = {}
        self._ready_bytes = 0
        self._received = b""
        ours, theirs = socket.socketpair()
        self._socket = ours
        # Here, since clients may be quicker than its interpreter.
        listener = local_socket.listen(self.name, backlog=_BACKLOG)
        passed = [listener.fileno(), theirs.fileno()]
        # What its imports print: each rank prints it again.
        printed = [linux.memory_file(f"hpctrain-{stream}") for stream in ("stdout", "stderr")]
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hpctrain.worker.fork_server"),
                    # No client waits here to learn why it does not serve.
                    *(*map(str, passed), "0", "-" * _PADDING),
                ],
                env={**environment},
                stdin=subprocess.DEVNULL,
                stdout=printed[0],
                stderr=printed[1],
                pass_fds=passed,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(printed[1])
            raise
        finally:
            theirs.close()
            listener.close()
            os.close(printed[0])
        self._errors = printed[1]
        self._socket.settimeout(timeouts.FORK_SERVER_END_S)
        try:
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
        except OSError:
            # It has ended already: so it is found.
            pass
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    @property
    def has_grown(self) -> bool:
        """Whether it has much more in memory than when it was ready."""
        from hpctrain.worker.process_state import resident_bytes

        most = self._ready_bytes * _MOST_GROWN + _MOST_GROWN_BYTES
        return self._ready_bytes > 0 and resident_bytes(self.pid) > most

    @property
    def is_ready(self) -> bool:
        """Whether it has imported, and serves."""
        self._listen()
        return bool(self._stamps) and not self.unusable and not self.has_ended

    def take_refusals(self) -> list[str]:
        """Return why it has not forked ranks, as far as that was not returned before."""
        self._listen()
        refusals, self._refusals = self._refusals, []
        return refusals

    def is_stale(self) -> bool:
        """Return whether packages were installed, or replaced, since it has imported."""
        self._listen()
        return any(stamp(path) != had for path, had in self._stamps.items())

    def await_idle(self, timeout_s: float) -> bool:
        """Wait until no rank of its is left; return whether that is so."""
        if not self.is_ready:
            # It has forked none yet, and a word would end it.
            return True
        self._is_idle = False
        try:
            self._socket.sendall(b"i")
        except OSError:
            return self.has_ended
        deadline = Deadline(timeout_s)
        while not self._is_idle and not deadline.is_over and not self.has_ended:
            _await_readable(self._socket.fileno(), _LOOK_INTERVAL_S)
            self._listen()
        return self._is_idle

    def close(self) -> None:
        """Let it end, and wait for that, unless ranks of it still live: it ends with the last."""
        has_ranks = bool(self._count_ranks())
        self._socket.close()
        os.close(self._errors)
        if has_ranks:
            # Nothing else collects its exit status.
            threading.Thread(target=self._process.wait, daemon=True).start()
            return
        # Where the kernel is too old for a pidfd, the server has refused, and has ended.
        with contextlib.suppress(OSError):
            pidfd = linux.pidfd_open(self.pid)
            # subprocess's own wait looks ever more seldom.
            _await_readable(pidfd, timeouts.FORK_SERVER_END_S)
            os.close(pidfd)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """Close the descriptors, in a fork."""
        self._socket.close()
        os.close(self._errors)

    def _count_ranks(self) -> int | None:
        """Return how many ranks of it live; None if it does not say, as while it imports."""
        self._listen()
        self._counts.clear()
        try:
            if self._stamps:
                self._socket.sendall(b"n")
        except OSError:
            return None
        deadline = Deadline(timeouts.FORK_SERVER_END_S if self._stamps else 0.0)
        while not self._counts and not deadline.is_over and not self.has_ended:
            _await_readable(self._socket.fileno(), _LOOK_INTERVAL_S)
            self._listen()
        return self._counts[-1] if self._counts else None

    def _listen(self) -> None:
        while True:
            try:
                received = self._socket.recv(_LINE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                if self.has_ended and not self.unusable and not self._stamps:
                    self.unusable = self._last_words()
                return
            *lines, self._received = (self._received + received).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: Mapping[str, object]) -> None:
        if "idle" in message:
            self._is_idle = True
        elif "ranks" in message:
            self._counts.append(int(str(message["ranks"])))
        elif "refused" in message:
            self._refusals.append(str(message["refused"]))
        elif "unusable" in message:
            self.unusable = str(message["unusable"])
        elif "ready" in message:
            stamps, resident = message["stamps"], message["resident"]
            assert isinstance(resident, int)
            self._ready_bytes = resident
            assert isinstance(stamps, dict)
            self._stamps = stamps

    def _last_words(self) -> str:
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _LINE_BYTES, max(0, size - _LINE_BYTES)).decode(
            errors="replace"
        )
        last = text.strip().splitlines()[-1:] or [f"status {self._process.returncode}"]
        return f"it ended while it imported: {last[0]}"


def _await_readable(descriptor: int, timeout_s: float) -> None:
    # Unlike select(), it takes descriptors above 1023, as a script with many open files has.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll(timeout_s * 1000)
