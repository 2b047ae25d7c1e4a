"""The agent of a node: ``python -m hpctrain.execute.agent ATTEMPT SOCKET SECRET ADDRESS...``.

In front of the addresses ``--lease=SECONDS`` can stand, see `hpctrain.execute.lease`, and
``--hosts=NAME,NAME...``, where mpiexec has started one agent on each of these, in this order, and
``--tree``, where agents also relay for others, see `hpctrain.control.relay`.

One process a node, without MPI. It passes frames between the ranks of its node and the executor, so
that the executor has one connection a node, and it notices when a rank dies.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ, timeouts
from hpctrain.control import local_socket
from hpctrain.control.link import LinkTimeoutError, connect_tcp
from hpctrain.control.node_use import NodeMeter, gpus_here
from hpctrain.control.wire import Frame, FrameSocket, encode_frame
from hpctrain.execute.node_report import describe_node, examine_storage
from hpctrain.execute.rank_relay import BACKLOG, BEAT_INTERVAL_S, RankRelay
from hpctrain.own_time import Deadline, OwnTime
from hpctrain.temporary_checkpoint import remove_dead_checkpoints
from hpctrain.worker.leftovers import remove_dead_segments, unlink_mapped_segments
from hpctrain.worker.node_socket import node_name, node_socket_name

if TYPE_CHECKING:
    from hpctrain.control.proof import Seal
    from hpctrain.control.relay_thread import RelayThread
    from hpctrain.execute.examine import Examiner


class Agent(RankRelay):
    """The frames of one node's ranks, and what the executor wants to know of the node.

    Parameters
    ----------
    attempt
        Number of the first attempt; the executor sends those of later ones.
    uplink
        Connected to the executor.
    seal
        The MACs of the frames between them.
    socket_name
        Of the socket for the ranks.
    run_dir
        The run directory, which the node is to write to; None if that is not looked at.
    lease_s
        Seconds of silence after which the executor is given up, if its node does not answer.
        None waits for the end of the connection.
    name
        By which the executor knows this node.
    executor
        Address of the executor; by default the other end of `uplink`.
    """

    def __init__(
        self,
        *,
        attempt: int,
        uplink: socket.socket,
        seal: Seal | None = None,
        socket_name: str,
        run_dir: Path | None = None,
        lease_s: float | None = None,
        name: str | None = None,
        executor: tuple[str, int] | None = None,
    ) -> None:
        self._executor = executor or uplink.getpeername()
        super().__init__(attempt=attempt, uplink=uplink, seal=seal, name=name or node_name())
        self._lease_s = lease_s
        self._time = OwnTime(time.monotonic(), longest_gap_s=BEAT_INTERVAL_S + 0.5)
        self._received_at = 0.0
        self._was_dismissed = False
        self._socket_name = socket_name
        self._run_dir = run_dir
        self._meter = NodeMeter(self._memory, gpus=gpus_here())
        self._processes: set[tuple[int, int]] = set()
        """Ranks of this node, and their pids, which other nodes have, too."""
        self._examiner: Examiner | None = None

    def run(self) -> bool:
        """Pass frames on until the executor is gone or ends it; return whether it ended it."""
        # Ranks do nothing before they find this listener.
        self._remove_leftovers()
        try:
            self.serve(local_socket.listen(self._socket_name, backlog=BACKLOG))
        finally:
            self._remove_leftovers()
        return self._was_dismissed

    def _end(self) -> None:
        for pid in self._memory.pids:
            # It may be in MPI_Init, and is to end.
            unlink_mapped_segments(pid)
        super()._end()

    def _remove_leftovers(self) -> None:
        """Remove what dead ranks have left here, also from before the job was requeued."""
        remove_dead_checkpoints(_tmp())
        if (job_id := environ.variable("SLURM_JOB_ID")) is not None:
            remove_dead_segments(job_id)

    def _introduce(self) -> None:
        super()._introduce()
        if self._run_dir is not None:
            self._send_health(str(self._run_dir))

    def _send_health(self, run_dir: str) -> None:
        """Send how this node is; a thread sends the state of its storage, which may hang, later."""
        node = self._name
        self._send("health", node=node, **describe_node(_tmp()))
        mine, others = socket.socketpair()
        self._add(FrameSocket(mine))

        def ask() -> None:
            storage = examine_storage(run_dir, node=node)
            header = {"op": "health", "attempt": self._attempt, "node": node, **storage}
            with others:
                others.sendall(encode_frame(header))

        threading.Thread(target=ask, name="hpctrain-storage", daemon=True).start()

    def _after_step(self) -> None:
        if self._examiner is not None:
            for seen in self._examiner.frames():
                self._uplink.post(encode_frame(seen.header, seen.body))
            self._watch(self._uplink)
        self._look_at_lease()

    def _look_at_lease(self) -> None:
        now = self._time.look(time.monotonic())
        if self._lease_s is None or now - self._received_at < self._lease_s:
            return
        from hpctrain.execute.lease import is_reachable

        if is_reachable(self._executor):
            # It is busy, or hangs on the filesystem.
            self._received_at = now
        else:
            self._uplink.close()

    def _note(self, frames: FrameSocket, frame: Frame) -> None:
        super()._note(frames, frame)
        if frame.op == "starting":
            self._processes.add((frame.header["launched_as"], frame.header["pid"]))
        elif frame.op == "hello":
            self._processes.add((frame.header["rank"], frame.header["pid"]))

    def _pass_down(self) -> None:
        self._received_at = self._time.now
        super()._pass_down()

    def _obey(self, frame: Frame) -> bool:
        if frame.op == "agent-exit":
            self._was_dismissed = True
            self._uplink.close()
        elif frame.op == "beat":
            self._send("beat", use=self._meter.read())
        elif frame.op == "begin":
            self._attempt = frame.header["attempt"]
            self._processes.clear()
            self._remove_leftovers()
            self._introduce()
            self._begin_spare(frame.header.get("spare", ""))
        elif frame.op == "examine":
            self._examine(frame)
        else:
            return False
        return True

    def _examine(self, request: Frame) -> None:
        from hpctrain.execute.examine import Examiner

        self._examiner = self._examiner or Examiner()
        pids = {int(rank): pid for rank, pid in request.header["pids"].items()}
        here = {rank: pid for rank, pid in pids.items() if (rank, pid) in self._processes}
        self._examiner.begin(request, here)


def _tmp() -> str:
    return environ.variable("TMPDIR") or "/tmp"


def run_agent(argv: list[str]) -> None:
    """Run an agent from its command line."""
    # The warnings of the job reach every step; they are for the ranks to pass on. An agent ends
    # with its uplink.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    attempt, template, secret_file, *addresses = argv
    lease_s, name = None, node_name()
    if addresses[0].startswith("--lease="):
        lease_s = float(addresses.pop(0).removeprefix("--lease="))
    if is_on_host := addresses[0].startswith("--hosts="):
        name = addresses.pop(0).removeprefix("--hosts=").split(",")[environ.launched_rank()]
    if in_tree := addresses[0] == "--tree":
        del addresses[0]
    secret, run_dir = _read_secret(Path(secret_file), name=name), Path(secret_file).parent
    # Behind the file that may not be there: it loads OpenSSL.
    from hpctrain.control.proof import Credentials

    credentials = Credentials(secret, run=str(run_dir), attempt=int(attempt))
    seal: Seal | None
    try:
        uplink, seal = connect_tcp(addresses, credentials, timeout_s=timeouts.EXECUTOR_CONNECTION_S)
    except LinkTimeoutError as error:
        raise SystemExit(f"hpctrain: {name} cannot be used: {error}") from error
    executor, here = uplink.getpeername(), uplink.getsockname()
    relay: RelayThread | None = None
    if in_tree:
        from hpctrain.control.relay_thread import RelayThread

        relay = RelayThread(uplink, seal, credentials)
        relay.start()
        uplink, seal = relay.uplink, None
    agent = Agent(
        attempt=int(attempt),
        uplink=uplink,
        seal=seal,
        socket_name=node_socket_name(template),
        run_dir=run_dir,
        lease_s=lease_s,
        name=name,
        executor=executor,
    )
    was_dismissed = agent.run()
    if relay is not None:
        # It still has last frames of this agent, and those for others, to pass on.
        relay.join(timeouts.THREAD_END_S + timeouts.LAST_FRAMES_S)
        if relay.relay.refusal:
            raise SystemExit(f"hpctrain: {name} cannot be used: {relay.relay.refusal}")
    is_orphan = not was_dismissed and lease_s is not None and not is_on_host
    # On the executor's own node no process is left to act; without Slurm, none can be asked.
    if is_orphan and executor[0] != here[0]:
        assert lease_s is not None
        from hpctrain.execute.lease import take_over

        take_over(run_dir, executor, lease_s=lease_s, let_end=_let_end)


def _let_end(may_end: bool) -> None:
    # An agent that only waits is not to keep the job, which another one ends, for KillWait.
    signal.signal(signal.SIGTERM, signal.SIG_DFL if may_end else signal.SIG_IGN)


def _read_secret(path: Path, *, name: str) -> bytes:
    deadline = Deadline(timeouts.SECRET_FILE_S)
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if deadline.is_over:
                # Without the secret it cannot connect: its output is all that others can read.
                raise SystemExit(
                    f"hpctrain: {name} cannot be used: it does not see the run directory "
                    f"{path.parent}: {error.strerror}"
                ) from error
        time.sleep(0.1)


if __name__ == "__main__":
    run_agent(sys.argv[1:])
