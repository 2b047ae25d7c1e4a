"""`ExistingRanks`: ranks that the user has started, as rank 0 reaches them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.execute.examine import Examiner
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.own_time import Deadline
from hpctrain.rundir.paths import RunPaths
from hpctrain.world import World

_POLL_S = 0.25


class ExistingRanks:
    """The other end of the ranks' links, in a thread of rank 0.

    Parameters
    ----------
    paths
        The run directory.
    attempt
        Number of the attempt.
    world
        Where rank 0 stands.
    on_complete
        Called with the nodes, by node rank, once every rank has connected.
    """

    lost_nodes: Mapping[str, bool] = {}
    """None: nodes have no agents here."""
    share_a_terminal = True
    """mpiexec and srun send Ctrl-C to every rank."""

    def __init__(
        self,
        paths: RunPaths,
        *,
        attempt: int,
        world: World,
        on_complete: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._paths = paths
        self._attempt = attempt
        self._world = world
        self._on_complete = on_complete
        self._examiner = Examiner()
        self._workers: dict[int, WorkerMetadata] = {}
        self._hub = Hub(attempt=attempt)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        """What ranks prove who they are with."""
        self.addresses = self._hub.listen_tcp(
            Credentials(self.secret, run=str(paths.root), attempt=attempt),
            only_here=world.num_nodes == 1,
        )
        """Where they connect to."""

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self._world.world_size

    @property
    def workers(self) -> Sequence[WorkerMetadata]:
        """Where each rank lives that has connected, by rank."""
        return [self._workers[rank] for rank in sorted(self._workers)]

    def node_use(self) -> Mapping[str, Mapping[str, Any]]:
        """Return nothing: there are no agents here."""
        return {}

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send a command to every rank."""
        self._hub.send(op, body, **details)

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return what ranks have sent since the last call; wait for it up to `timeout_s`."""
        frames = self._hub.poll(timeout_s) + self._examiner.frames()
        for frame in frames:
            if frame.op == "hello":
                self._welcome(frame)
        return frames

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Look at ranks of this host."""
        header = {"attempt": self._attempt, "run": str(self._paths.root), "silent": silent}
        here = {
            rank: pid
            for rank, pid in pids.items()
            if self._workers[rank].hostname == self._world.hostname
        }
        self._examiner.begin(Frame(header, b"", b""), here)

    def exit_status(self) -> None:
        """Return None: what has started them is not ours."""

    def launcher_output(self) -> None:
        """Return None: it goes elsewhere."""

    def await_death_notice(self) -> None:
        """Return at once: there is no launcher to read here."""

    def dismiss(self, op: str, body: bytes, *, patience_s: float) -> None:
        """Send the last command to all ranks, wait until they have left, and close."""
        self._hub.send(op, body)
        deadline = Deadline(patience_s)
        while self._hub.num_ranks and not deadline.is_over:
            self._hub.poll(_POLL_S)
        self._hub.close()

    def _welcome(self, hello: Frame) -> None:
        worker = WorkerMetadata.from_hello(hello.header)
        self._workers[worker.rank] = worker
        if len(self._workers) == len(self):
            ordered = sorted(self._workers.values(), key=lambda w: (w.node_rank, w.rank))
            self._on_complete(tuple(dict.fromkeys(w.hostname for w in ordered)))
