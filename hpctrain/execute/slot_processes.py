"""Processes in the steps of a slot on several nodes, each of them one step to an executor."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpctrain import timeouts
from hpctrain.execute.process import StepProcess
from hpctrain.execute.slot_step import SlotProcess, SlotStep, SlotStepError
from hpctrain.own_time import Deadline

if TYPE_CHECKING:
    from hpctrain.plan.resources import Placement

# Of hydra's launcher "manual" (MPICH 5).
_LAUNCH, _LAUNCHED = b"HYDRA_LAUNCH: ", b"HYDRA_LAUNCH_END"
_FIRST_OPTION, _NUMBER = " --control-port ", "--proxy-id"


class NodeProcesses(StepProcess, ABC):
    """A process on each of some nodes.

    Parameters
    ----------
    argv
        What runs there.
    log
        File of this host that gets their output.

    Raises
    ------
    SlotStepError
        If one cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, log: Path) -> None:
        self._parts: list[SlotProcess] = []
        super().__init__(argv, environment={}, log=log)

    @abstractmethod
    def _start_parts(self) -> None:
        """Append them to `_parts`, and wait until they have started."""

    def _start(self) -> None:
        self._parts.clear()
        self._output_begins = 0
        with suppress(OSError):
            self._output_begins = self.log.stat().st_size
        try:
            self._start_parts()
        except BaseException:
            self.close()
            raise

    def start_again(self) -> None:
        """Start them once more, after they have ended."""
        self.close()
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the first one, on its node."""
        return self._parts[0].pid

    @property
    def reasons(self) -> Sequence[str]:
        """Why ranks are not forked."""
        return [*dict.fromkeys(reason for part in self._parts for reason in part.reasons)]

    def returncode(self) -> int | None:
        """Return the status of one that has failed, or 0 once all have ended; None before."""
        statuses = [part.returncode() for part in self._parts]
        return next((status for status in statuses if status), None if None in statuses else 0)

    def kill(self, patience_s: float = timeouts.LAUNCHER_END_S) -> None:
        """End them and all that they have started: first politely, then not."""
        for part in self._polite:
            part.ask("end")
        self._await_all(patience_s / 2)
        for part in self._parts:
            part.ask("kill")
        self._await_all(patience_s / 2)
        self.close()

    def close(self) -> None:
        """End the connections, and with them what still runs."""
        for part in self._parts:
            part.close()
        # It is that of a part.
        self.pidfd = None

    @property
    def _polite(self) -> Sequence[SlotProcess]:
        """Those that end when they are asked to."""
        return self._parts

    def _await_end(self, timeout_s: float) -> None:
        self._await_all(timeout_s)

    def _await_all(self, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        for part in self._parts:
            part.wait(max(deadline.left_s, 0.0))


class SlotAgents(NodeProcesses):
    """The agents of some nodes.

    Parameters
    ----------
    steps
        The steps, by node.
    command
        Of an agent.
    environment
        Of the executor.
    log
        File of this host that gets their output.
    """

    def __init__(
        self,
        steps: Mapping[str, SlotStep],
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._steps, self._of_agents = steps, environment
        super().__init__(command, log=log)

    def _start_parts(self) -> None:
        for node, step in self._steps.items():
            with _naming(node):
                agent = step.start_agent(
                    self.argv, environment=self._of_agents, log=self.log, waits=False
                )
            self._parts.append(agent)
        for node, part in zip(self._steps, self._parts, strict=True):
            with _naming(node):
                part.await_start()


class SlotRanks(NodeProcesses):
    """Ranks of an attempt: mpiexec on the first node, and its proxy on each node.

    Parameters
    ----------
    steps
        The steps, by node.
    argv
        Of the mpiexec, which prints the commands of its proxies.
    command
        Of an ordinary rank.
    placement
        How ranks lie on nodes.
    environment
        Of the executor, for them.
    log
        File of this host that gets their output.
    """

    def __init__(
        self,
        steps: Mapping[str, SlotStep],
        argv: Sequence[str],
        command: Sequence[str],
        *,
        placement: Placement,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._steps, self._of_ranks = [*steps.items()], environment
        self._command, self._placement = command, placement
        super().__init__(argv, log=log)

    def _start_parts(self) -> None:
        mpiexec = self._start_in(0, self.argv, kind=ManualMpiexec)
        assert isinstance(mpiexec, ManualMpiexec)
        with _naming(self._steps[0][0]):
            commands = mpiexec.await_commands()
        if sorted(commands) != [*range(len(self._steps))]:
            raise SlotStepError(f"mpiexec starts proxies {sorted(commands)}, and not one a node")
        for node in sorted(commands):
            self._start_in(node, commands[node], waits=False)
        for (name, _), proxy in zip(self._steps, self._parts[1:], strict=True):
            with _naming(name):
                proxy.await_start()
        # The ranks end with it.
        self.pidfd = mpiexec.pidfd

    def _start_in(
        self,
        node: int,
        argv: Sequence[str],
        *,
        kind: type[SlotProcess] = SlotProcess,
        waits: bool = True,
    ) -> SlotProcess:
        name, step = self._steps[node]
        with _naming(name):
            part = step.start_ranks(
                argv,
                self._command,
                placement=self._placement,
                node=node,
                environment=self._of_ranks,
                log=self.log,
                waits=waits,
                kind=kind,
            )
        self._parts.append(part)
        return part

    def returncode(self) -> int | None:
        """Return the exit status of mpiexec, or None while it runs."""
        return self._parts[0].returncode()

    @property
    def _polite(self) -> Sequence[SlotProcess]:
        # It ends its proxies, and these their ranks.
        return self._parts[:1]

    def _await_end(self, timeout_s: float) -> None:
        self._parts[0].wait(timeout_s)


class ManualMpiexec(SlotProcess):
    """An mpiexec in the step of a slot that starts none of its proxies, and prints their commands.

    They are not in its log.
    """

    def _start(self) -> None:
        self._printed = ProxyCommands()
        self._is_complete = threading.Event()
        super()._start()

    def await_commands(self) -> Mapping[int, Sequence[str]]:
        """Return the command of the proxy of each node, by the node's number.

        Raises
        ------
        SlotStepError
            If it does not print them.
        """
        self._is_complete.wait(timeouts.SLOT_ANSWER_S)
        if not self._printed.is_complete:
            printed = self.last_lines()
            raise SlotStepError(
                f"{Path(self.argv[0]).name} did not print how its proxies are started"
                + (f":\n{printed}" if printed else "")
            )
        return self._printed.commands

    def _write(self, output: BinaryIO, printed: bytes) -> None:
        super()._write(output, self._printed.take(printed))
        if self._printed.is_complete:
            self._is_complete.set()

    def _note_end(self, output: BinaryIO) -> None:
        super()._write(output, self._printed.take_rest())
        self._is_complete.set()


class ProxyCommands:
    """The commands of proxies, in the output of an mpiexec with the launcher ``manual``."""

    def __init__(self) -> None:
        self._line = b""
        self.commands: dict[int, list[str]] = {}
        """By number of the node."""
        self.is_complete = False
        """Whether there are no more."""

    def take(self, printed: bytes) -> bytes:
        """Take output; return what of it is for the log."""
        if self.is_complete:
            return printed
        *lines, self._line = (self._line + printed).splitlines(keepends=True) or [b""]
        if self._line.endswith(b"\n"):
            lines, self._line = [*lines, self._line], b""
        others = b""
        for line in lines:
            if self.is_complete:
                others += line
            elif line.startswith(_LAUNCHED):
                self.is_complete = True
            elif line.startswith(_LAUNCH):
                self._take_command(line[len(_LAUNCH) :].decode(errors="surrogateescape"))
            else:
                others += line
        return others + self.take_rest() if self.is_complete else others

    def take_rest(self) -> bytes:
        """Return the line that has no end yet."""
        line, self._line = self._line, b""
        return line

    def _take_command(self, text: str) -> None:
        # Words are not quoted, and the path of a program may have blanks.
        program, option, rest = text.strip().partition(_FIRST_OPTION)
        words = [program, *f"{option}{rest}".split()]
        self.commands[int(words[words.index(_NUMBER) + 1])] = words


@contextmanager
def _naming(node: str) -> Iterator[None]:
    """Let errors say in the step of which node they are."""
    try:
        yield
    except SlotStepError as error:
        raise SlotStepError(f"on {node}: {error}") from error
