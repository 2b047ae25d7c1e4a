"""`FakeRanks`: ranks that are not there, for tests of the loop over an attempt."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.worker.failure import RankFailure


class FakeRanks:
    """Simulated ranks: a test chooses what they send, and reads what they receive.

    Parameters
    ----------
    size
        Number of ranks.
    share_a_terminal
        As of `Ranks`.
    """

    def __init__(self, size: int, *, share_a_terminal: bool = False) -> None:
        self.share_a_terminal = share_a_terminal
        self.lost_nodes: Mapping[str, bool] = {}
        self.status: int | None = None
        """Exit status of the launcher."""
        self.said: str | None = None
        """Output of the launcher."""
        self.wait_statuses: dict[int, int] = {}
        """How ranks died, where that is known of others than the launcher."""
        self.sent: list[tuple[str, dict[str, Any]]] = []
        """Frames that ranks received: the operation, and its details."""
        self.uses: dict[str, dict[str, Any]] = {}
        """What nodes have measured of the use of them."""
        self._size = size
        self._frames: deque[Frame] = deque()
        self._is_shut_down = False

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self._size

    @property
    def workers(self) -> Sequence[WorkerMetadata]:
        """Ranks on one node each."""
        return [
            WorkerMetadata(
                rank=rank,
                hostname=f"node{rank}",
                pid=rank + 1,
                tmp="/tmp",
                tmp_owner="",
                node_rank=rank,
                local_rank=0,
            )
            for rank in range(self._size)
        ]

    def send(self, op: str, rank: int, body: bytes = b"", **details: Any) -> None:
        """Let a rank send a frame, which the next `poll` returns."""
        self._frames.append(Frame({"op": op, "rank": rank, **details}, body, b""))

    def report(self, rank: int, **metrics: Any) -> None:
        """Let a rank make a report."""
        self.send("report", rank, json.dumps({"metrics": metrics}).encode() + b"\n")

    def fail(self, rank: int, message: str, *, kind: str = "ValueError") -> None:
        """Let a rank fail with an exception."""
        self.send("failed", rank, describe_failure(rank, message, kind=kind))

    def node_use(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the test has set."""
        return self.uses

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Take note of it."""
        self._refuse_if_shut_down()
        self.sent.append((op, details))

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return what the test let ranks send."""
        self._refuse_if_shut_down()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Take note of it."""
        self.sent.append(("examine", {"pids": pids, "silent": silent}))

    def exit_status(self) -> int | None:
        """Return what the test has set."""
        return self.status

    def launcher_output(self) -> str | None:
        """Return what the test has set."""
        return self.said

    def await_death_notice(self, silent: Sequence[int]) -> tuple[int, int] | None:
        """Take note of it, and return what the test has set."""
        self.sent.append(("await_death_notice", {"silent": silent}))
        known = ((rank, self.wait_statuses[rank]) for rank in silent if rank in self.wait_statuses)
        return next(known, None)

    def shutdown(self, patience_s: float = 0.0) -> None:
        """End the ranks: nothing comes from them any more, and nothing can be sent to them."""
        self._is_shut_down = True

    def _refuse_if_shut_down(self) -> None:
        if self._is_shut_down:
            raise ValueError("these ranks are not started: shutdown() has ended them.")


def describe_failure(rank: int, message: str, *, kind: str, report: int = 0) -> bytes:
    """Return what a rank sends of an exception. Not collective.

    Parameters
    ----------
    kind
        Class of the exception.
    report
        Number of the rank's last report.
    """
    failure = RankFailure(
        rank=rank,
        hostname=f"node{rank}",
        pid=rank + 1,
        report=report,
        phase="training",
        type=kind,
        message=message,
        traceback="",
        time=0.0,
    )
    return json.dumps(failure.to_json()).encode()
