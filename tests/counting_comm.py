"""`Counting`: what collectives are for, and how many bytes come of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from hpctrain.testing.thread_comm import ThreadComm


class Counting:
    """A communicator that keeps what its collectives were for, and how many bytes came of them."""

    def __init__(self, comm: ThreadComm) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.stages: list[str] = []
        self.agreed: list[int] = []
        """Bytes of each object that all ranks received."""
        self.received = 0
        """Bytes of what this rank received alone."""

    def allgather(self, obj: Any) -> list[Any]:
        self.stages.append(obj[0])
        self.agreed.append(len(pickle.dumps(obj)))
        return self._comm.allgather(obj)

    def gather(self, obj: Any) -> list[Any] | None:
        gathered = self._comm.gather(obj)
        if gathered is not None:
            self.received += len(pickle.dumps(gathered))
        return gathered

    def scatter(self, objects: Sequence[Any] | None) -> Any:
        mine = self._comm.scatter(objects)
        self.received += len(pickle.dumps(mine))
        return mine
