"""Wait until all ranks of a group have joined one MPI world, or raise why they do not."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.control.wire import PROTOCOL, Frame
from hpctrain.errors import LaunchError
from hpctrain.execute.health import Health, explain_bad_nodes
from hpctrain.execute.out_of_memory import advise_more_memory, describe_kill
from hpctrain.execute.process import StepProcess
from hpctrain.own_time import Deadline
from hpctrain.slurm.client import is_passing, is_refused_for_now
from hpctrain.worker.failure import RankFailure

_POLL_S = 0.1
_LOOK_INTERVAL_S = 1.0
_MAX_NAMED = 8
_ASK_INTERVAL_S = 0.5
_WHOSE_MEMORY = (
    "Another step of this job holds the memory ('squeue --steps' names it): start such a step with "
    "srun --overlap."
)
_NUM_LINES = 200
# What Slurm and MPI libraries print when ranks cannot find each other. Some then hang for ever.
_MPI_START_ERROR = re.compile(
    r"invalid client request|Fatal error in \S*Init|PMIX? ERROR|PMI2?_Init"
)


@dataclass(frozen=True, kw_only=True)
class WorkerMetadata:
    """Where a rank lives."""

    rank: int
    hostname: str
    pid: int
    tmp: str
    """Its directory for temporary files."""
    tmp_owner: str
    """What `temporary_owner` returns in its process."""
    node_rank: int
    local_rank: int

    @staticmethod
    def from_hello(header: Mapping[str, Any]) -> WorkerMetadata:
        """Return what a rank sent of itself in its first frame.

        Raises
        ------
        LaunchError
            If it does not speak as this process does.
        """
        if header.get("protocol") != PROTOCOL:
            raise LaunchError(
                f"rank {header['rank']} on {header['hostname']} imports another hpctrain than its "
                f"executor: it was installed anew while the run was on. fit() with the same name "
                f"resumes the run with the new one."
            )
        return WorkerMetadata(
            rank=header["rank"],
            hostname=header["hostname"],
            pid=header["pid"],
            tmp=header["tmp"],
            tmp_owner=header["tmp_owner"],
            node_rank=header["node_rank"],
            local_rank=header["local_rank"],
        )


class Rendezvous:
    """The ranks of a group that have joined so far.

    Parameters
    ----------
    poll
        Returns the frames that they send.
    examine
        Asks for a look at processes from outside.
    step
        What starts them.
    agents
        What starts the agents of their nodes; None on one machine.
    size
        Number of ranks.
    stacks
        Where it is written what those looks have shown.
    health
        Gets the reports of nodes.
    find_down
        Returns which nodes, whose agents have not come, are down: no step starts there, and srun
        may wait for them without end.
    find_silent
        Returns which nodes of the ranks have lost their power, or their network, since their agents
        came.
    check_stop
        Raises if the start is to end: called about once a second.
    ask_after_s
        Seconds after which it is called for the first time; each further one takes twice as long.
    """

    def __init__(
        self,
        poll: Callable[[float], list[Frame]],
        *,
        examine: Callable[[Mapping[int, int], Sequence[int]], None],
        step: StepProcess,
        agents: StepProcess | None,
        size: int,
        stacks: Path,
        health: Health,
        find_down: Callable[[], Sequence[str]] = lambda: (),
        find_silent: Callable[[], Sequence[str]] = lambda: (),
        check_stop: Callable[[], None] = lambda: None,
        ask_after_s: float = math.inf,
    ) -> None:
        self._poll = poll
        self._examine = examine
        self._stacks = stacks
        self._step = step
        self._agents = agents
        self._size = size
        self._health = health
        self._find_down, self._ask_after_s = find_down, ask_after_s
        self._find_silent, self._check_stop = find_silent, check_stop
        self._begun: dict[tuple[str, int], int] = {}
        """Ranks by host and pid, which several hosts may have."""
        self.workers: dict[int, WorkerMetadata] = {}
        """Ranks that have joined."""
        self.not_forked: dict[str, None] = {}
        """Why ranks import their modules themselves, in order."""

    def wait(self, timeout_s: float) -> None:
        """Wait until all have joined, and all nodes have reported that they can be used.

        Raises
        ------
        LaunchError
            If a node is bad, a rank dies or fails, their launcher ends, or the time is over.
        """
        try:
            self._await_ranks(timeout_s)
            self._await_storage(timeouts.NODE_STORAGE_S)
        except LaunchError as error:
            self._await_last_words()
            self._refuse_bad_nodes(error)
            raise
        self._health.give_up(self._health.unanswered(), after_s=timeouts.NODE_STORAGE_S)
        self._refuse_bad_nodes(None)

    def _refuse_bad_nodes(self, error: LaunchError | None) -> None:
        printed = ""
        if self._agents is not None:
            printed = self._agents.last_lines(_NUM_LINES)
            self._read_refusals(self._agents)
        verdict = self._health.verdict()
        if not verdict.allows_start:
            message = explain_bad_nodes(verdict, in_allocation=self._agents is not None)
            if printed and not verdict.unseen:
                message += f"\nTheir agents printed:\n{printed}"
            raise LaunchError(message) from error

    def _await_last_words(self) -> None:
        begun = time.monotonic()
        while not self._health.is_complete():
            is_unanimous = self._health.is_unanimous()
            patience_s = timeouts.NODE_REASONS_S if is_unanimous else timeouts.LAST_NODE_REPORTS_S
            if time.monotonic() > begun + patience_s:
                return
            for frame in self._poll(_POLL_S):
                self._take_health(frame)
            if self._agents is not None:
                self._read_refusals(self._agents)

    def _read_refusals(self, agents: StepProcess) -> None:
        # Of each node, and what srun adds.
        most = _NUM_LINES + 4 * self._health.num_nodes
        self._health.read(agents.last_lines(most))

    def _await_storage(self, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        while self._health.unanswered() and not deadline.is_over:
            for frame in self._poll(_POLL_S):
                self._take(frame)

    def _take_health(self, frame: Frame) -> None:
        if frame.op == "health":
            self._health.take(frame.header)

    def _await_ranks(self, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        asking = Deadline(min(timeout_s, timeouts.STEP_REFUSAL_S))
        look_at = time.monotonic() + _LOOK_INTERVAL_S
        asking_down = Deadline(self._ask_after_s)
        while len(self.workers) < self._size:
            ended = self._step.returncode() is not None
            frames = self._poll(_POLL_S)
            for frame in frames:
                self._take(frame)
            if ended and not frames and not self._ask_again(self._step, asking):
                self._fail(
                    f"{self._launcher} ended with status {self._step.returncode()} after "
                    f"{len(self.workers)} of {self._size} ranks had joined."
                )
            if self._agents is not None and self._agents.returncode():
                if self._ask_again(self._agents, asking):
                    continue
                printed = self._agents.last_lines()
                if is_refused_for_now(printed):
                    printed += f"\n{_WHOSE_MEMORY}"
                raise LaunchError(
                    f"the agents of the nodes did not start: {printed}",
                    transient=is_passing(printed),
                )
            if silent := self._find_silent():
                # A step of Slurm would end, but not each launcher is one.
                self._fail(f"{', '.join(silent)} went silent before the ranks had started.")
            now = time.monotonic()
            if now > look_at:
                look_at = now + _LOOK_INTERVAL_S
                self._check_stop()
                if _MPI_START_ERROR.search(self._step.last_lines()):
                    self._fail(f"{self._size} ranks could not form an MPI world.")
                if self._agents is not None:
                    self._read_refusals(self._agents)
                if not self._health.verdict().allows_start and not self._health.unanswered():
                    self._fail("a node is bad.")
            if asking_down.is_over:
                self._ask_after_s *= 2
                asking_down = Deadline(self._ask_after_s)
                if down := self._find_down():
                    self._fail(f"{', '.join(down)} went down before the ranks had started.")
            if deadline.is_over:
                self._fail(self._explain_timeout(timeout_s))

    def _ask_again(self, step: StepProcess, asking: Deadline) -> bool:
        """Start a step again that Slurm has refused for now; return False if it has not."""
        if asking.is_over or not is_refused_for_now(step.last_lines()):
            return False
        for frame in self._poll(_ASK_INTERVAL_S):
            self._take(frame)
        step.start_again()
        return True

    def _take(self, frame: Frame) -> None:
        if frame.op == "starting":
            pid, rank = frame.header["pid"], frame.header["launched_as"]
            self._begun[frame.header["hostname"], pid] = rank
            if reason := frame.header.get("not_forked"):
                self.not_forked[str(reason)] = None
        elif frame.op == "hello":
            worker = WorkerMetadata.from_hello(frame.header)
            self.workers[worker.rank] = worker
        elif frame.op == "health":
            self._take_health(frame)
        elif frame.op == "failed":
            raise LaunchError(RankFailure.from_json(json.loads(frame.body)).message)
        elif frame.op == "lost":
            memory = frame.header.get("memory") or {}
            if memory.get("kills"):
                raise LaunchError(
                    f"a rank was {describe_kill(memory)}, while the group of {self._size} ranks "
                    f"was starting. {advise_more_memory(memory)}"
                )
            self._fail(f"a rank died while the group of {self._size} ranks was starting.")

    def _explain_timeout(self, timeout_s: float) -> str:
        joined = {(worker.hostname, worker.pid) for worker in self.workers.values()}
        hanging = [(rank, *where) for where, rank in self._begun.items() if where not in joined]
        reasons = self._look_at({rank: pid for rank, _, pid in hanging if rank >= 0})
        where = ""
        if hanging:
            named = [
                f"rank {rank} on {hostname}" + (f" ({reasons[rank]})" if rank in reasons else "")
                for rank, hostname, _ in sorted(hanging)
            ]
            more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
            where = f", and these hang in MPI_Init: {', '.join(named[:_MAX_NAMED])}{more}"
        if reasons:
            where += f". Stacks: {self._stacks}"
        if len(self._begun) < self._size:
            # Those that import first have not, and print where they are.
            where += f". Output of the others: {self._step.log}"
        return (
            f"{len(self.workers)} of {self._size} ranks joined within "
            f"{timeouts.describe(timeout_s)}; {len(self._begun)} processes had begun{where}."
        )

    def _look_at(self, pids: Mapping[int, int]) -> dict[int, str]:
        """Return why ranks do not go on, as far as can be seen from outside."""
        reasons: dict[int, str] = {}
        if not pids:
            return reasons
        self._examine(pids, list(pids))
        deadline = Deadline(timeouts.LATE_RANKS_STACKS_S)
        while len(reasons) < len(pids) and not deadline.is_over:
            for frame in self._poll(_POLL_S):
                if frame.op == "examined":
                    reasons[frame.header["rank"]] = frame.header["reason"]
        return reasons

    def _fail(self, what: str) -> None:
        printed = self._step.last_lines()
        raise LaunchError(
            f"{what} {self._launcher} printed:\n{printed}" if printed else what, transient=True
        )

    @property
    def _launcher(self) -> str:
        return Path(self._step.argv[0]).name
