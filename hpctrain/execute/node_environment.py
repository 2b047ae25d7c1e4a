"""`NodeEnvironment`: the packed environment of a run on the disks of its nodes."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.node_answers import (
    Brought,
    read_node_answers,
    read_reasons,
    read_step_id,
)
from hpctrain.execute.pack_exchange import PackExchange
from hpctrain.execute.process import StepProcess
from hpctrain.log import log as write_log
from hpctrain.own_time import Deadline
from hpctrain.pack.header import FORK_CLIENT, EnvironmentPack
from hpctrain.plan.argv import node_keeper_argv
from hpctrain.plan.environment_pack import (
    ALONE,
    FAILED,
    READS,
    READY,
    UNPACKS,
    broadcast_argv,
    node_variables,
    step_argv,
    unpack_argv,
    unpacked_at,
)
from hpctrain.slurm.client import is_passing, is_refused_for_now

_LOOK_INTERVAL_S = 0.1
_SIGNAL_INTERVAL_S = 0.2
# The caller looks at files of the run.
_STOP_INTERVAL_S = 1.0
_ALL_LINES = 2**31
_NUM_LINES = 20
_DEFAULT_PLACE = "/tmp"


def expand_place(directory: str) -> str:
    """Return where nodes of this job unpack an environment. Not collective.

    Parameters
    ----------
    directory
        ``SlurmConfig(environment_pack_dir=...)``.

    Raises
    ------
    ConfigError
        If a variable of it is not set.
    """
    if directory == "$TMPDIR" and not environ.variable("TMPDIR"):
        directory = _DEFAULT_PLACE
    return str(environ.expand_path(directory))


class NodeEnvironment:
    """The packed environment of a run, which is brought to each node before anything starts there.

    A process of a step keeps it on each node, with a lock: other jobs of the same user share it,
    and the last one that leaves removes it.

    Parameters
    ----------
    pack
        The environment.
    is_slice
        Whether other runs are in the job.
    check_stop
        Is called once a second while nodes get it. What it raises ends that, on the nodes too.
    """

    def __init__(
        self,
        pack: EnvironmentPack,
        *,
        is_slice: bool = False,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._pack = pack
        self._is_slice = is_slice
        self._check_stop = check_stop
        self._check_at = 0.0
        self._place = expand_place(pack.directory)
        self._run = secrets.token_hex(4)
        self._unpacked = unpacked_at(pack, place=self._place, user=os.geteuid(), run=self._run)
        self._steps: list[StepProcess] = []
        self._nodes: set[str] = set()
        self._nodes_of: dict[StepProcess, tuple[str, ...]] = {}
        self._is_anywhere = False

    @property
    def python(self) -> str:
        """The interpreter of the environment, on each node."""
        return f"{self._unpacked}/{self._pack.interpreter}"

    @property
    def fork_client(self) -> str:
        """The file of `hpctrain.worker.fork_client`, on each node."""
        return f"{self._unpacked}/{FORK_CLIENT}"

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which paths of the environment are those of the copy."""
        return node_variables(variables, self._pack, unpacked=self._unpacked)

    def bring(self, nodes: Sequence[str], num_nodes: int, *, log: Path) -> Brought | None:
        """Bring it to the nodes that do not have it; return how, None if all of them have it.

        Not collective.

        Parameters
        ----------
        nodes, num_nodes
            As in `hpctrain.plan.argv.container_test_argv`.
        log
            File that gets what is printed.

        Raises
        ------
        LaunchError
            If one of them cannot get it.
        """
        self._forget_ended()
        new = [node for node in nodes if node not in self._nodes]
        if (nodes and not new) or (not nodes and self._is_anywhere):
            return None
        begun = time.monotonic()
        wanted = len(new) or num_nodes
        copy = f"{self._place}/hpctrain-packs-{os.geteuid()}-{secrets.token_hex(8)}.copy"
        why = ""
        # Nodes that come later, and those of runs that share the job, get it from one another.
        is_first = not self._is_anywhere and not self._is_slice
        if is_first:
            try:
                why = self._broadcast(copy, new, wanted, log)
            except BaseException:
                # What unpacks it, and removes it, has not begun.
                self._remove(copy, new, wanted, log)
                raise
        is_copied = is_first and not why
        exchange = None if is_copied else self._offer(wanted)
        step = self._start_unpacking(new, wanted, copy, log, exchange)
        try:
            answers = self._await(step, wanted)
        except BaseException:
            self._steps.remove(step)
            _close(exchange)
            _end([step])
            raise
        _close(exchange)
        self._nodes.update(new)
        self._nodes_of[step] = tuple(new)
        self._is_anywhere = True
        by = "tree" if exchange is not None and exchange.num_given else "read"
        printed = step.last_lines(_ALL_LINES)
        return Brought(
            nodes=tuple(sorted(answers)),
            by="sbcast" if is_copied else by,
            reading=tuple(sorted(n for n, found in answers.items() if found.startswith(READS))),
            why=why,
            alone=read_reasons(printed, ALONE),
            unmounted=read_reasons(printed, UNPACKS),
            seconds=time.monotonic() - begun,
        )

    def _offer(self, num_nodes: int) -> PackExchange | None:
        """Return what lets nodes get the pack from one another; None if each reads the file."""
        if num_nodes < 2:
            return None
        try:
            return PackExchange(self._pack, num_nodes=num_nodes)
        except (OSError, ValueError, RuntimeError) as error:
            # Limits of this process: of files, of threads.
            write_log(f"note: nodes cannot get {self._pack.path} from one another: {error}")
            return None

    def _start_unpacking(
        self,
        nodes: Sequence[str],
        num_nodes: int,
        copy: str,
        log: Path,
        exchange: PackExchange | None,
    ) -> StepProcess:
        argv = unpack_argv(
            self._pack,
            place=self._place,
            copy=copy,
            patience_s=timeouts.ENVIRONMENT_PACK_S,
            run=self._run,
            is_offered=exchange is not None,
        )
        program = b"" if exchange is None else exchange.program
        try:
            step = self._start(nodes, num_nodes, argv, log, stdin=program)
        except BaseException:
            _close(exchange)
            raise
        self._steps.append(step)
        return step

    def close(self) -> None:
        """Let the nodes remove it; end what keeps it there."""
        _end(self._steps)
        self._steps, self._nodes, self._is_anywhere = [], set(), False
        self._nodes_of.clear()

    def _forget_ended(self) -> None:
        """Bring it anew to nodes where what keeps it there has ended: it is gone with that."""
        for step in [step for step in self._steps if step.returncode() is not None]:
            self._steps.remove(step)
            self._nodes.difference_update(self._nodes_of.pop(step, ()))
            self._is_anywhere = bool(self._steps)

    def _broadcast(self, copy: str, nodes: Sequence[str], num_nodes: int, log: Path) -> str:
        """Copy the pack to nodes, and to no others of the job; return why it failed."""
        deadline = Deadline(timeouts.ENVIRONMENT_PACK_S)
        is_whole_job = str(num_nodes) == environ.variable("SLURM_JOB_NUM_NODES")
        with ExitStack() as steps:
            try:
                target = None
                if not is_whole_job:
                    # On the others nothing would remove it. sbcast takes the nodes of a step too.
                    held = self._start(
                        nodes,
                        num_nodes,
                        step_argv(timeouts.ENVIRONMENT_PACK_S),
                        # It prints while sbcast does, whose last line is why that failed.
                        log.with_stem(f"{log.stem}-step"),
                    )
                    steps.callback(held.kill)
                    target = self._await_id(held, deadline)
                step = StepProcess(
                    broadcast_argv(self._pack, copy=copy, step=target),
                    environment=environ.environment(),
                    log=log,
                )
            except LaunchError as error:
                return str(error)
            steps.callback(step.kill)
            while (status := step.wait(_LOOK_INTERVAL_S)) is None and not deadline.is_over:
                self._check_now_and_then()
            if status == 0:
                return ""
            if status is None:
                return f"it did not end within {timeouts.describe(timeouts.ENVIRONMENT_PACK_S)}"
            return step.last_lines(1) or f"it ended with {status}"

    def _await_id(self, step: StepProcess, deadline: Deadline) -> str:
        """Return the id of a step once it runs on a node."""
        asking = Deadline(timeouts.STEP_REFUSAL_S)
        while not (found := read_step_id(step.last_lines(_ALL_LINES))):
            self._check_now_and_then()
            status = step.wait(_LOOK_INTERVAL_S)
            if deadline.is_over:
                raise LaunchError(step.last_lines(1) or "srun did not begin")
            if status is None:
                continue
            if asking.is_over or not is_refused_for_now(step.last_lines(_ALL_LINES)):
                raise LaunchError(step.last_lines(1) or f"srun ended with {status}")
            time.sleep(_LOOK_INTERVAL_S)
            step.start_again()
        return found

    def _start(
        self,
        nodes: Sequence[str],
        num_nodes: int,
        command: Sequence[str],
        log: Path,
        *,
        stdin: bytes = b"",
    ) -> StepProcess:
        """Start a process on each of some nodes."""
        environment = environ.without_export_variables(environ.environment())
        # By it srun would pass its input to one task, or to none.
        environment.pop("SLURM_STDINMODE", None)
        return StepProcess(
            node_keeper_argv(nodes, num_nodes, command, is_slice=self._is_slice),
            environment=environment,
            log=log,
            job_id=environ.variable("SLURM_JOB_ID"),
            stdin=stdin,
        )

    def _remove(self, copy: str, nodes: Sequence[str], num_nodes: int, log: Path) -> None:
        """Remove a copy of the pack, whole or not, from nodes."""
        try:
            step = self._start(nodes, num_nodes, ["rm", "-f", "--", copy], log)
        except LaunchError:
            # The next job of this user there removes it.
            return
        step.wait(timeouts.ENVIRONMENT_PACK_END_S)
        step.kill()

    def _await(self, step: StepProcess, wanted: int) -> dict[str, str]:
        """Return what each node printed, once all of them have the environment."""
        deadline = Deadline(timeouts.ENVIRONMENT_PACK_S)
        asking = Deadline(timeouts.STEP_REFUSAL_S)
        answers: dict[str, str] = {}
        while not deadline.is_over:
            self._check_now_and_then()
            exit_code = step.wait(_LOOK_INTERVAL_S)
            printed = step.last_lines(_ALL_LINES)
            answers = read_node_answers(printed)
            failed = {node: answer for node, answer in answers.items() if answer.startswith(FAILED)}
            if failed:
                raise LaunchError(self._explain(failed))
            if sum(_is_ready(answer) for answer in answers.values()) >= wanted:
                return answers
            if exit_code is None:
                continue
            if asking.is_over or not is_refused_for_now(printed):
                lines = "\n".join(printed.splitlines()[-_NUM_LINES:]) or "it printed nothing"
                raise LaunchError(
                    f"{self._pack.path} was not unpacked on all {wanted} nodes: srun ended with "
                    f"{exit_code}. It printed:\n{lines}",
                    transient=is_passing(printed),
                )
            time.sleep(_LOOK_INTERVAL_S)
            step.start_again()
        silent = wanted - sum(_is_ready(answer) for answer in answers.values())
        raise LaunchError(
            f"{self._pack.path} was not unpacked on {silent} of {wanted} nodes within "
            f"{timeouts.describe(timeouts.ENVIRONMENT_PACK_S)}. Look at {step.log}.",
            transient=True,
        )

    def _check_now_and_then(self) -> None:
        if (now := time.monotonic()) >= self._check_at:
            self._check_at = now + _STOP_INTERVAL_S
            self._check_stop()

    def _explain(self, failed: Mapping[str, str]) -> str:
        node, answer = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more nodes have no copy either" if len(failed) > 1 else ""
        return (
            f"the environment {self._pack.path} cannot be unpacked on {node}: "
            f"{answer.removeprefix(FAILED).strip()}{more}. Choose another "
            f"SlurmConfig(environment_pack_dir=...) such as '/dev/shm', pack it again with "
            f"hpctrain pack, or leave environment_pack out."
        )


def _is_ready(answer: str) -> bool:
    # The path of a pack may end so, too.
    return answer == READY or answer.endswith(f" {READY}")


def _close(exchange: PackExchange | None) -> None:
    # Before the step is ended: a node that waits for others then goes on, and gets the signal.
    if exchange is not None:
        exchange.close()


def _end(steps: Sequence[StepProcess]) -> None:
    deadline = Deadline(timeouts.ENVIRONMENT_PACK_END_S)
    while (alive := [s for s in steps if s.returncode() is None]) and not deadline.is_over:
        # srun passes it on to the process of each node, but not while it launches; and with dash
        # 0.5.12 a single one was without effect, twice in some hundred (the cause is not known).
        # So it is sent until it works, and at least three times: one alone comes from Slurm.
        for step in alive:
            os.kill(step.pid, signal.SIGUSR1)
        alive[0].wait(_SIGNAL_INTERVAL_S)
    for step in steps:
        step.kill()
