"""Many agents in one process: ``python many_agents.py ADDRESS COUNT FIRST_RANK tree|flat``.

Their connections are those of real agents, and one selector serves all of them. What an agent has
behind it, one rank each, is played: it answers ``freeze``, and heartbeats with figures of a node.
Prints ``ready``, and connects when a line comes.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
from functools import partial

from hpctrain.control.event_loop import EventLoop
from hpctrain.control.link import connect_tcp
from hpctrain.control.proof import Credentials, Seal
from hpctrain.control.relay import Relay
from hpctrain.control.wire import FrameSocket, encode_frame

CREDENTIALS = Credentials(b"s" * 32, run="/runs/one", attempt=1)
NUM_CONNECTING = 4
"""Agents of this process that connect at the same time."""
USE = {"cpus": 128, "cpu": 101.4, "memory": 412345, "memory_limit": 515000, "gpus": []}


class PlayedAgent:
    """The end that an agent has of its connection, or of its relay."""

    def __init__(self, frames: FrameSocket, rank: int) -> None:
        self._frames = frames
        self._rank = rank
        self._post("agent", node=f"node{rank:05}")
        self._post("hello", rank=rank)

    def hear(self, _: int) -> None:
        for frame in self._frames.receive():
            if frame.op == "beat":
                self._post("beat", use=USE)
            elif frame.op == "freeze":
                self._post("frozen", rank=self._rank, report=1000)

    def _post(self, op: str, **details: object) -> None:
        self._frames.post(encode_frame({"op": op, "attempt": 1, **details}))


def main() -> None:
    address, count, first_rank, shape = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    loop = EventLoop()

    def begin(rank: int, sock: socket.socket, seal: Seal, begun: threading.Event) -> None:
        if shape == "flat":
            frames = FrameSocket(sock, seal)
            begun.set()
        else:
            uplink, local = socket.socketpair()
            relay = Relay(loop, local=local, first=(sock, seal), credentials=CREDENTIALS)
            frames = FrameSocket(uplink)

            def look() -> None:
                if relay.has_parent:
                    begun.set()
                else:
                    loop.call_later(0.002, look)

            look()
        loop.watch(frames, selectors.EVENT_READ, PlayedAgent(frames, rank).hear)

    def connect(ranks: range) -> None:
        for rank in ranks:
            sock, seal = connect_tcp([address], CREDENTIALS, timeout_s=60.0)
            begun = threading.Event()
            loop.post(partial(begin, rank, sock, seal, begun))
            # The agents of one process are not nodes of their own: more would wait for its core.
            begun.wait()

    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(NUM_CONNECTING):
        ranks = range(first_rank + number, first_rank + count, NUM_CONNECTING)
        threading.Thread(target=connect, args=(ranks,), daemon=True).start()
    while True:
        loop.turn(1.0)


if __name__ == "__main__":
    main()
