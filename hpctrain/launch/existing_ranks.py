"""`ExistingRanks`: ranks that the user has started, as rank 0 reaches them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain.control import local_socket
from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.execute.examine import Examiner
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.launch.node_relay import CoordinatorAddress
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
    """None: nodes have no agents here, and a relay ends with its rank."""
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
        self._unexamined: list[Frame] = []
        self._workers: dict[int, WorkerMetadata] = {}
        # A relay is silent while what its rank does keeps Python's lock.
        self._hub = Hub(attempt=attempt, silence_s=math.inf)
        secret = secrets.token_bytes(SECRET_BYTES)
        self.address = CoordinatorAddress(
            socket_name=local_socket.new_socket_name(),
            addresses=self._hub.listen_tcp(
                Credentials(secret, run=str(paths.root), attempt=attempt),
                only_here=world.num_nodes == 1,
                num_agents=world.num_nodes,
            ),
            secret=secret,
        )
        """Where they connect to."""
        self._hub.listen_locally(self.address.socket_of(world.node_rank), measures=False)

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

    @property
    def num_connections(self) -> int:
        """Number of connections over TCP: one for each node but this one."""
        return self._hub.num_remote

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send a command to every rank."""
        self._hub.send(op, body, **details)

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return what ranks have sent since the last call; wait for it up to `timeout_s`."""
        frames = self._hub.poll(timeout_s) + self._examiner.frames() + self._unexamined
        self._unexamined = []
        for frame in frames:
            if frame.op == "hello":
                self._welcome(frame)
        return [self._seen_through_relay(frame) for frame in frames]

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Look at ranks of this host; report whose relay does not answer either."""
        for rank, others in self._silent_relays(silent).items():
            named = ", ".join(map(str, others))
            reason = f"it does not answer, and ranks {named} of its node are connected through it"
            header = {"op": "examined", "attempt": self._attempt, "rank": rank, "reason": reason}
            self._unexamined.append(Frame(header, b"", b""))
        header = {"attempt": self._attempt, "run": str(self._paths.root), "silent": silent}
        here = {
            rank: pid
            for rank, pid in pids.items()
            if self._workers[rank].node_rank == self._world.node_rank
        }
        self._examiner.begin(Frame(header, b"", b""), here)

    def exit_status(self) -> None:
        """Return None: what has started them is not ours."""

    def launcher_output(self) -> None:
        """Return None: it goes elsewhere."""

    def await_death_notice(self, silent: Sequence[int]) -> None:
        """Return at once: there is no launcher to read here."""

    def dismiss(self, op: str, body: bytes, *, patience_s: float) -> None:
        """Send the last command to all ranks, wait until they have left, and close."""
        self._hub.send(op, body)
        deadline = Deadline(patience_s)
        while self._hub.num_ranks and not deadline.is_over:
            for frame in self._hub.poll(_POLL_S):
                if frame.op == "hello":
                    # It has lost its relay, and comes by itself.
                    self._hub.send(op, body, ranks=[frame.header["rank"]])
        self._hub.close()

    def _seen_through_relay(self, frame: Frame) -> Frame:
        """Return a frame, but "cut-off" for the loss of a rank whose connection was another one's.

        The connection of a node ends with the process of the rank that has it. Of the others behind
        it nothing is known.
        """
        if frame.op != "lost" or not frame.header.get("agent"):
            return frame
        rank = int(frame.header["rank"])
        relay = self._relay_of(rank)
        header = {**frame.header, "agent": False}
        if relay is not None and relay != rank:
            header.update(op="cut-off", relay=relay)
        return Frame(header, b"", b"")

    def _relay_of(self, rank: int) -> int | None:
        """Return the rank through which another one is connected; None if it is not known yet."""
        node_rank = self._workers[rank].node_rank
        return next(
            (w.rank for w in self.workers if w.node_rank == node_rank and w.local_rank == 0), None
        )

    def _silent_relays(self, silent: Sequence[int]) -> dict[int, list[int]]:
        """Return the ranks of other nodes that do not answer, with those behind them."""
        found: dict[int, list[int]] = {}
        for rank in silent:
            is_here = self._workers[rank].node_rank == self._world.node_rank
            relay = None if is_here else self._relay_of(rank)
            if relay is not None and relay != rank and relay in silent:
                found.setdefault(relay, []).append(rank)
        return found

    def _welcome(self, hello: Frame) -> None:
        worker = WorkerMetadata.from_hello(hello.header)
        if worker.rank in self._workers:
            return
        self._workers[worker.rank] = worker
        if len(self._workers) == len(self):
            ordered = sorted(self._workers.values(), key=lambda w: (w.node_rank, w.rank))
            self._on_complete(tuple(dict.fromkeys(w.hostname for w in ordered)))
