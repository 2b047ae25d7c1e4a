"""Answer the executor's question where this rank is: the Python stacks of its threads."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
import time

from hpctrain import linux
from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.flight_recorder import is_recording, recorded_collectives
from hpctrain.world import World


def answer_with_stacks(link: Link, paths: RunPaths, world: World) -> None:
    """Let a link answer ``dump-stacks``, also while the main thread is busy. Not collective.

    Where the backend's library records collectives, what it has recorded follows.

    What holds Python's lock (GIL) keeps the thread of the link from answering, and so does SIGSTOP.
    The agent of the node then looks at the process from outside.
    """

    def dump(_: Frame) -> None:
        stacks = dump_threads()
        # First of all: the filesystem may be what everybody waits for.
        records = is_recording()
        link.post("stacks", main_thread_of(stacks).encode(), record_follows=records)
        if records:
            link.post("collectives", json.dumps(recorded_collectives()).encode())
        path = paths.stacks_of_rank(world.attempt, world.world_rank)
        title = (
            f"rank {world.world_rank}, process {os.getpid()} on {world.hostname}, "
            f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n\n"
        )
        # A full disk must not end the thread that receives from the executor.
        with contextlib.suppress(OSError):
            path.write_text(title + stacks)

    link.handle("dump-stacks", dump)


def dump_threads() -> str:
    """Return the Python stacks of all threads of this process. Not collective."""
    # faulthandler reads no source file, as traceback would: on all ranks, from the same disk.
    descriptor = linux.memory_file("hpctrain-stacks")
    try:
        faulthandler.dump_traceback(descriptor, all_threads=True)
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
    finally:
        os.close(descriptor)


def main_thread_of(stacks: str) -> str:
    """Return the part of the main thread, where the training function runs. Not collective."""
    ident = f"0x{threading.main_thread().ident or 0:016x}"
    blocks = stacks.split("\n\n")
    return next((block for block in blocks if ident in block.partition("\n")[0]), "")
