"""Wait until all ranks of a group have joined one MPI world, or say why they do not."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.control.hub import Hub
from hpctrain.control.wire import Frame
from hpctrain.errors import LaunchError
from hpctrain.execute.out_of_memory import advise_more_memory, describe_kill
from hpctrain.execute.process import StepProcess
from hpctrain.worker.failure import RankFailure

_POLL_S = 0.1
_LOOK_INTERVAL_S = 1.0
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
    node_rank: int
    local_rank: int

    @staticmethod
    def from_hello(header: Mapping[str, Any]) -> WorkerMetadata:
        """Return what a rank said of itself when it introduced itself."""
        return WorkerMetadata(
            rank=header["rank"],
            hostname=header["hostname"],
            pid=header["pid"],
            node_rank=header["node_rank"],
            local_rank=header["local_rank"],
        )


class RollCall:
    """The ranks of a group that have joined so far.

    Parameters
    ----------
    hub
        Where they introduce themselves.
    step
        What starts them.
    agents
        What starts the agents of their nodes; None on one machine.
    size
        Number of ranks.
    """

    def __init__(
        self, hub: Hub, *, step: StepProcess, agents: StepProcess | None, size: int
    ) -> None:
        self._hub = hub
        self._step = step
        self._agents = agents
        self._size = size
        self._begun: set[str] = set()
        self._num_begun = 0
        self.workers: dict[int, WorkerMetadata] = {}
        """Ranks that have joined."""

    def wait(self, timeout_s: float) -> None:
        """Wait until all have joined.

        Raises
        ------
        LaunchError
            If one dies or complains, their launcher ends, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        look_at = time.monotonic() + _LOOK_INTERVAL_S
        while len(self.workers) < self._size:
            ended = self._step.returncode() is not None
            frames = self._hub.poll(_POLL_S)
            for frame in frames:
                self._take(frame)
            if ended and not frames:
                self._fail(
                    f"{self._launcher} ended with status {self._step.returncode()} after "
                    f"{len(self.workers)} of {self._size} ranks had joined."
                )
            if self._agents is not None and self._agents.returncode():
                raise LaunchError(
                    f"the agents of the nodes did not start: {self._agents.last_lines()}"
                )
            now = time.monotonic()
            if now > look_at:
                look_at = now + _LOOK_INTERVAL_S
                if _MPI_START_ERROR.search(self._step.last_lines()):
                    self._fail(f"{self._size} ranks could not form an MPI world.")
            if now > deadline:
                self._fail(self._explain_timeout(timeout_s))

    def _take(self, frame: Frame) -> None:
        if frame.op == "starting":
            self._begun.add(frame.header["hostname"])
            self._num_begun += 1
        elif frame.op == "hello":
            worker = WorkerMetadata.from_hello(frame.header)
            self.workers[worker.rank] = worker
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
        silent = sorted(self._begun - {worker.hostname for worker in self.workers.values()})
        where = f", and those of {', '.join(silent)} hang in MPI_Init" if silent else ""
        return (
            f"{len(self.workers)} of {self._size} ranks joined within {timeout_s:.0f} s; "
            f"{self._num_begun} processes had begun{where}."
        )

    def _fail(self, what: str) -> None:
        said = self._step.last_lines()
        raise LaunchError(
            f"{what} {self._launcher} said:\n{said}" if said else what, transient=True
        )

    @property
    def _launcher(self) -> str:
        return Path(self._step.argv[0]).name
