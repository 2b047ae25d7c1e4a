"""`SlotStep`: the step of a slot on one node, as the executor of a trial sees it.

A tuner keeps it from trial to trial (`hpctrain.tune.slot_steps`).
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpctrain import timeouts
from hpctrain.backend import modules_of_trials
from hpctrain.control.link import connect_once
from hpctrain.control.wire import FrameSocket, ProtocolError, encode_frame
from hpctrain.errors import LaunchError
from hpctrain.execute.process import StepProcess, process_start_time
from hpctrain.execute.slot_request import credentials, encode_request, variables_of_ranks
from hpctrain.own_files import open_log
from hpctrain.own_time import Deadline
from hpctrain.plan.modules import own_places
from hpctrain.rundir.files import may_pass

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal
    from hpctrain.plan.resources import Placement
    from hpctrain.plan.spec import RankSettings

_LOOK_INTERVAL_S = 0.01
_LOST = -9
_ADDRESS_BEGINS = '{"addresses"'
_ENDED = b"\1" + 7 * b"\0"


class SlotStepError(Exception):
    """The step of a slot cannot be used."""


class SlotStep:
    """Starts agents and ranks in the step of a slot.

    Parameters
    ----------
    ticket
        Of `make_ticket`.
    settings
        The surroundings of ranks.
    """

    def __init__(self, ticket: str, settings: RankSettings) -> None:
        pid, start, self.mark = ticket.split(":")
        self._srun, self._srun_start = int(pid), int(start)
        self._modules = [*modules_of_trials(settings)]
        self._dispensable = [*settings.preload_for_trials]
        self._own_places = [*own_places(settings.sys_path)]
        self._reached_by: Mapping[str, object] | None = None

    def start_agent(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        waits: bool = True,
    ) -> SlotProcess:
        """Start the agent of its node.

        Not collective.

        Parameters
        ----------
        waits
            As of `SlotProcess`.

        Raises
        ------
        SlotStepError
            If it cannot be started there.
        """
        request = encode_request(
            [],
            command=[*command],
            environment=environment,
            of_rank={},
            without=[],
            cwd=os.getcwd(),
            agent=True,
            modules=[],
            dispensable=[],
            own_places=[],
        )
        return SlotProcess(self, request, argv=command, log=log, waits=waits)

    def start_ranks(
        self,
        argv: Sequence[str],
        command: Sequence[str],
        *,
        placement: Placement,
        node: int = 0,
        environment: Mapping[str, str],
        log: Path,
        waits: bool = True,
        kind: type[SlotProcess] | None = None,
    ) -> SlotProcess:
        """Start a launcher of ranks, or what it has on this node.

        Not collective.

        Parameters
        ----------
        argv
            Of the launcher.
        command
            Of an ordinary rank.
        placement
            How all ranks lie on nodes.
        node
            Number of this node among them.
        waits
            As of `SlotProcess`.
        kind
            What the process is here; None is a `SlotProcess`.

        Raises
        ------
        SlotStepError
            If it cannot be started there.
        """
        of_rank, without = variables_of_ranks(placement, node)
        request = encode_request(
            [*argv],
            command=[*command],
            environment=environment,
            of_rank=of_rank,
            without=without,
            cwd=os.getcwd(),
            agent=False,
            modules=self._modules,
            dispensable=self._dispensable,
            own_places=self._own_places,
        )
        return (kind or SlotProcess)(self, request, argv=argv, log=log, waits=waits)

    def is_there(self) -> bool:
        """Return whether its srun lives. Not collective."""
        return process_start_time(self._srun) == self._srun_start

    def connect(self) -> tuple[socket.socket, Seal]:
        """Connect to it, once it is there.

        Raises
        ------
        SlotStepError
            If it does not come in time, or does not answer.
        """
        reached_by = self._await_start()
        secret, addresses = reached_by["secret"], reached_by["addresses"]
        assert isinstance(secret, str)
        assert isinstance(addresses, list)
        errors = []
        for address in addresses:
            try:
                return connect_once(address, credentials(bytes.fromhex(secret)))
            except OSError as error:
                errors.append(f"{address}: {error}")
        raise SlotStepError(f"it does not answer: {'; '.join(errors)}")

    def _await_start(self) -> Mapping[str, object]:
        deadline = Deadline(timeouts.SLOT_STEP_S)
        while self._reached_by is None:
            if not self.is_there():
                raise SlotStepError("it has ended")
            with suppress(OSError):
                # What the step has printed: srun is a process of this host, and of this user.
                printed = Path(f"/proc/{self._srun}/fd/1").read_text(errors="replace")
                # Its process id may be another's by now.
                if self.is_there() and (found := find_address(printed)) is not None:
                    self._reached_by = found
                    break
            if deadline.is_over:
                raise SlotStepError(
                    f"it has not started within {timeouts.describe(timeouts.SLOT_STEP_S)}"
                )
            time.sleep(_LOOK_INTERVAL_S)
        return self._reached_by


def find_address(printed: str) -> Mapping[str, object] | None:
    """Return how the step of a slot is reached, by what it has printed; None if not known yet.

    Pure. A task prolog, and whatever Python starts with, may print before it.
    """
    for line in printed.splitlines(keepends=True):
        begins = line.find(_ADDRESS_BEGINS)
        if begins >= 0 and line.endswith("\n"):
            with suppress(ValueError):
                found = json.loads(line[begins:])
                if isinstance(found, dict):
                    return found
    return None


def make_ticket(srun: int, mark: str) -> str:
    """Return by what an executor finds the step of a slot: its srun. Not collective.

    Parameters
    ----------
    srun
        Process of this host.
    mark
        Value of the variable `hpctrain.environ.STEP_MARK` of that process.
    """
    return f"{srun}:{process_start_time(srun) or 0}:{mark}"


class SlotProcess(StepProcess):
    """A process in the step of a slot.

    Parameters
    ----------
    slot
        The step.
    request
        What it is asked for.
    argv
        What runs there.
    log
        File of this host that gets its output.
    waits
        Whether to wait until it is started; otherwise `await_start` does that.

    Raises
    ------
    SlotStepError
        If it cannot be started there.
    """

    def __init__(
        self,
        slot: SlotStep,
        request: bytes,
        *,
        argv: Sequence[str],
        log: Path,
        waits: bool = True,
    ) -> None:
        self._slot, self._request, self._waits = slot, request, waits
        super().__init__(argv, environment={}, log=log)

    def start_again(self) -> None:
        """Start the command once more, after it has ended."""
        self.close()
        self._start()

    def _start(self) -> None:
        self.reasons: Sequence[str] = ()
        """Why ranks are not forked."""
        self._status: int | None = None
        self._remote_pid = 0
        try:
            output = open(open_log(self.log), "ab")  # noqa: SIM115 - the thread's
        except OSError as error:
            raise LaunchError(
                f"cannot start {self.argv[0]}: {error.strerror} ({self.log}).",
                transient=may_pass(error),
            ) from error
        self._output_begins = output.tell()
        try:
            self._socket, seal = self._slot.connect()
        except BaseException:
            output.close()
            raise
        self._frames = FrameSocket(self._socket, seal)
        self._answered = threading.Event()
        self._refusal = ""
        self.pidfd = os.eventfd(0)
        self._thread = threading.Thread(
            target=self._listen, args=(output, self.pidfd), name="hpctrain-slot", daemon=True
        )
        self._thread.start()
        self._post(self._request)
        if self._waits:
            self.await_start()

    def await_start(self) -> None:
        """Wait until it is started.

        Raises
        ------
        SlotStepError
            If it is not.
        """
        if not self._answered.wait(timeouts.SLOT_ANSWER_S):
            self._refusal = "it does not answer"
        if self._refusal:
            self.close()
            raise SlotStepError(self._refusal)

    @property
    def pid(self) -> int:
        """Its process id, on its node."""
        return self._remote_pid

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._status

    def kill(self, patience_s: float = timeouts.LAUNCHER_END_S) -> None:
        """End it and all that it has started: first politely, then not."""
        for op in ("end", "kill"):
            if self.ask(op):
                self._await_end(patience_s / 2)
        self.close()

    def ask(self, op: str) -> bool:
        """Let the step ``end`` it, or ``kill`` it; return False if it has ended already."""
        if self._status is not None or self.pidfd is None:
            return False
        self._post(encode_frame({"op": op}))
        return True

    def close(self) -> None:
        """End the connection, and with it what still runs."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._frames.close()
        super().close()

    def _post(self, raw: bytes) -> None:
        self._frames.queue(raw)
        deadline = Deadline(timeouts.SLOT_ANSWER_S)
        while not self._frames.flush() and not deadline.is_over:
            self._frames.await_room(_LOOK_INTERVAL_S)

    def _listen(self, output: BinaryIO, ended: int) -> None:
        """Write down what the process prints, until it has ended."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        try:
            while self._status is None and not self._frames.closed:
                poller.poll()
                for frame in self._frames.receive():
                    if frame.op == "started":
                        self._remote_pid = int(frame.header["pid"])
                        self.reasons = tuple(frame.header.get("reasons", ()))
                        self._answered.set()
                    elif frame.op == "output":
                        self._write(output, frame.body)
                    elif frame.op == "ended":
                        self._status = int(frame.header["status"])
                    elif frame.op == "refused":
                        self._refusal = str(frame.header["reason"])
                        self._answered.set()
        except (ProtocolError, OSError, ValueError):
            pass
        finally:
            if self._status is None:
                self._status = _LOST
            if not self._answered.is_set():
                self._refusal = "it has ended"
                self._answered.set()
            self._note_end(output)
            with suppress(OSError):
                output.close()
            os.write(ended, _ENDED)

    def _write(self, output: BinaryIO, printed: bytes) -> None:
        """Write down what the process has printed. In a thread of its own."""
        with suppress(OSError):
            output.write(printed)
            output.flush()

    def _note_end(self, output: BinaryIO) -> None:
        """Take it that there will be no more output. In that thread."""
