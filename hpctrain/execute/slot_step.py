"""`SlotStep`: the step of a slot, as the executor of a trial sees it.

A tuner keeps it from trial to trial (`hpctrain.tune.slot_steps`). It is an offer: an executor that
cannot use it starts steps of its own.
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

from hpctrain import environ, timeouts
from hpctrain.backend import OF_EVERY_RANK
from hpctrain.control.link import connect_once
from hpctrain.control.wire import FrameSocket, ProtocolError, encode_frame
from hpctrain.errors import LaunchError
from hpctrain.execute.process import StepProcess, process_start_time
from hpctrain.execute.slot_request import credentials, encode_request
from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.log import log
from hpctrain.own_files import open_log
from hpctrain.own_time import Deadline
from hpctrain.plan.modules import own_places
from hpctrain.rundir.files import may_pass

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal
    from hpctrain.plan.launch_plan import StepLauncher
    from hpctrain.plan.resources import Placement
    from hpctrain.plan.spec import RankSettings

_LOOK_INTERVAL_S = 0.01
_LOST = -9
_ADDRESS_BEGINS = '{"addresses"'
_ENDED = b"\1" + 7 * b"\0"
# By these a process would be the only task of the step.
_OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS")


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
        pid, start, self._mark = ticket.split(":")
        self._srun, self._srun_start = int(pid), int(start)
        self._modules = [*dict.fromkeys((*OF_EVERY_RANK, *settings.preload))]
        self._own_places = [*own_places(settings.sys_path)]
        self._reached_by: Mapping[str, object] | None = None
        self.is_usable = True
        """Whether it is there, as far as is known."""

    def launcher(self) -> StepLauncher:
        """Return what starts ranks in it."""
        return find_mpiexec("wheel")

    def start_agent(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> SlotProcess | None:
        """Start the agent of its node; return None, and give it up, if that cannot be.

        Not collective.
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
            own_places=[],
        )
        try:
            return SlotProcess(self, request, argv=command, log=log)
        except SlotStepError as error:
            self.give_up(str(error))
            return None

    def start_ranks(
        self,
        argv: Sequence[str],
        command: Sequence[str],
        *,
        placement: Placement,
        environment: Mapping[str, str],
        log: Path,
    ) -> SlotProcess:
        """Start a launcher of ranks, and these as forks of a process of the step.

        Not collective.

        Parameters
        ----------
        argv
            Of the launcher.
        command
            Of a rank.

        Raises
        ------
        LaunchError
            If it cannot be started there.
        """
        count, cpus = str(placement.num_workers), str(placement.cpus_per_task)
        names = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE")
        request = encode_request(
            [*argv],
            command=[*command],
            environment=environment,
            of_rank={
                **dict.fromkeys((*names, "SLURM_STEP_TASKS_PER_NODE"), count),
                "SLURM_CPUS_PER_TASK": cpus,
            },
            # The launcher's own say which rank a process is.
            without=[*_OF_TASK] if placement.num_workers > 1 else [],
            cwd=os.getcwd(),
            agent=False,
            modules=self._modules,
            own_places=self._own_places,
        )
        try:
            return SlotProcess(self, request, argv=argv, log=log)
        except SlotStepError as error:
            # The agent, which the slot has started, is no use to other ranks.
            raise LaunchError(f"ranks cannot start in it: {error}", transient=True) from error

    def give_up(self, reason: str) -> None:
        """Do without it from here on, and end it: the run's own steps need what it has."""
        if not self.is_usable:
            return
        self.is_usable = False
        log(f"note: this run starts steps of its own, and none in the step of its slot: {reason}")
        job_id = environ.variable("SLURM_JOB_ID")
        if job_id is not None and self._is_there():
            from hpctrain.slurm.steps import end_marked_steps

            end_marked_steps(job_id, self._mark, timeout_s=timeouts.SLOT_STEP_END_S)

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
            if not self._is_there():
                raise SlotStepError("it has ended")
            with suppress(OSError):
                # What the step has printed: srun is a process of this host, and of this user.
                printed = Path(f"/proc/{self._srun}/fd/1").read_text(errors="replace")
                # Its process id may be another's by now.
                if self._is_there() and (found := find_address(printed)) is not None:
                    self._reached_by = found
                    break
            if deadline.is_over:
                raise SlotStepError(
                    f"it has not started within {timeouts.describe(timeouts.SLOT_STEP_S)}"
                )
            time.sleep(_LOOK_INTERVAL_S)
        return self._reached_by

    def _is_there(self) -> bool:
        return process_start_time(self._srun) == self._srun_start


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

    Raises
    ------
    SlotStepError
        If it cannot be started there.
    """

    def __init__(self, slot: SlotStep, request: bytes, *, argv: Sequence[str], log: Path) -> None:
        self._slot, self._request = slot, request
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
            if self._status is None and self.pidfd is not None:
                self._post(encode_frame({"op": op}))
                self._await_end(patience_s / 2)
        self.close()

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
            select.select([], [self._frames], [], _LOOK_INTERVAL_S)

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
                        with suppress(OSError):
                            output.write(frame.body)
                            output.flush()
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
            with suppress(OSError):
                output.close()
            os.write(ended, _ENDED)
