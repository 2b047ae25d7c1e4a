"""Lets ranks take turns to write, when nothing is written, and prints how long all take.

Usage: take_turns.py RANKS ROUNDS

Ranks are threads of this process; each has a link of its own to the executor's hub.
"""

from __future__ import annotations

import json
import sys
import threading

import raw_disk

from hpctrain.control import local_socket
from hpctrain.control.hub import Hub
from hpctrain.control.link import Link
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.execute.write_slots import WriteSlots
from hpctrain.worker.writing import Writing

LIMIT = 8


def main() -> None:
    """Take turns with a limit and without."""
    ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
    name = local_socket.new_socket_name()
    hub = Hub(attempt=1)
    hub.listen_locally(name)
    threading.Thread(target=serve, args=(hub, ranks), daemon=True).start()
    for arm, limit in (("8 at a time", LIMIT), ("no limit", None)):
        everyone = [join(name, rank, limit) for rank in range(ranks)]
        for number in range(rounds + 1):
            wall_s, cpu_s = raw_disk.timed(lambda who=everyone: write(who))
            line = {"arm": arm, "round": number, "wall_s": wall_s, "cpu_s": cpu_s}
            print(json.dumps(line), flush=True)


def serve(hub: Hub, ranks: int) -> None:
    """Do what an executor does."""
    tracker, slots = AttemptTracker(world_size=ranks, first_report=0), WriteSlots(LIMIT)
    while True:
        for frame in hub.poll(0.25):
            tracker.feed(frame)
        for rank, number, wanted in tracker.slots:
            slots.hear(rank, number, wanted=wanted)
        tracker.slots.clear()
        for rank, number in slots.grant().items():
            hub.send("slot", ranks=[rank], number=number)


def join(name: str, rank: int, limit: int | None) -> Writing:
    """Return the writing of a rank that is connected."""
    link = Link(local_socket.connect(name, timeout_s=10), attempt=1, on_lost=lambda: None)
    link.introduce(rank, {})
    writing = Writing(
        rank=rank,
        timeout_s=60,
        ask=lambda number, wanted: link.post("slot", number=number, wanted=wanted),
    )
    writing.limit(max_writers=limit, max_bytes_per_s=None)
    link.handle("slot", lambda frame: writing.begin(frame.header["number"]))
    return writing


def write(everyone: list[Writing]) -> None:
    """Let all ranks write nothing at the same moment."""

    def take(writing: Writing) -> None:
        with writing.slot():
            pass

    threads = [threading.Thread(target=take, args=[writing]) for writing in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
