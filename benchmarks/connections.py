"""``connections``: what ranks that the user has started cost rank 0, by connections.

The coordinator's end is real (`hpctrain.control.hub`), and so are its connections over TCP, with
their proofs and MACs. One process stands for all ranks. One connection a node, as relays have it,
against one a rank: the CPU time of rank 0's thread, which it takes from rank 0's training, until
all ranks are known, and for each report of all of them.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge

PER_NODE = 8
REPORTS = 20
SIZES = (64, 512)
TIMEOUT_S = 120.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    sys.path.insert(0, str(arguments.tree))
    arms = {"one a node": PER_NODE, "one a rank": 1}
    for ranks in arguments.sizes or SIZES:
        connected: dict[str, list[Sample]] = {arm: [] for arm in arms}
        reported: dict[str, list[Sample]] = {arm: [] for arm in arms}
        for number in range(arguments.rounds + (arguments.rounds > 1)):
            for arm, per_connection in arms.items():
                joined, reports = _run(arguments, ranks, per_connection)
                if arguments.say is not None:
                    arguments.say(
                        f"connections {ranks}, round {number}: {arm} {joined.wall_s:.3f} s"
                    )
                if number > 0 or arguments.rounds == 1:
                    connected[arm].append(joined)
                    reported[arm].append(reports)
        goals = [Goal(against="one a rank")]
        notes = {"connections": f"{-(-ranks // PER_NODE)} in place of {ranks}"}
        yield judge(f"connect {ranks} ranks", "one a node", connected, goals, notes=notes)
        yield judge(f"report of {ranks} ranks", "one a node", reported, goals)


def _run(arguments: Namespace, ranks: int, per_connection: int) -> tuple[Sample, Sample]:
    """Return what it takes until all ranks are known, and each report of all; of the hub alone."""
    from hpctrain.control.hub import Hub
    from hpctrain.control.proof import Credentials

    secret, run = secrets.token_bytes(32), "/a/run"
    hub = Hub(attempt=1)
    addresses = hub.listen_tcp(Credentials(secret, run=run, attempt=1), only_here=True)
    words = [secret.hex(), run, str(ranks), str(per_connection), str(REPORTS), *addresses]
    program = str(PROGRAMS / "connected_ranks.py")
    begin = time.perf_counter(), time.thread_time()
    process = subprocess.Popen(
        [sys.executable, program, *words], env=child_environment(arguments.tree)
    )
    try:
        known, reports, samples = 0, 0, []
        while reports < ranks * REPORTS:
            if time.perf_counter() > begin[0] + TIMEOUT_S or process.poll() is not None:
                raise SystemExit(f"connections: {known} ranks, {reports} reports, then no more")
            for frame in hub.poll(0.25):
                known += frame.op == "hello"
                reports += frame.op == "report"
            if known == ranks and not samples:
                samples.append(_since(begin, parts=1))
                begin = time.perf_counter(), time.thread_time()
        samples.append(_since(begin, parts=REPORTS))
    finally:
        hub.close()
        process.wait(30)
    return samples[0], samples[1]


def _since(begin: tuple[float, float], *, parts: int) -> Sample:
    # What counts is the CPU time of this thread: walls have the time of the ranks' process in them.
    return Sample((time.thread_time() - begin[1]) / parts)
