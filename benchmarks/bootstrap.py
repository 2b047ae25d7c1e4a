"""``bootstrap``: ranks of a run without a framework, against ranks that only find each other.

Ranks that hpctrain starts, and ranks that mpiexec has started (SPMD).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

from arms import PROGRAMS, Goal, Measured, Row, alternate, command, mpiexec

BARE = "from mpi4py import MPI; import cloudpickle; MPI.COMM_WORLD.bcast(b'spec')"
EXECUTOR_S = 0.3


def measure(arguments: Namespace) -> Iterator[Measured]:
    tree = arguments.tree
    for size in arguments.sizes or (2, 4, 8, 16, 32, 64):
        bare = [mpiexec(), "-n", str(size), sys.executable, "-c", BARE]
        row = Row(
            name=f"bootstrap {size} ranks",
            ours=command(
                "hpctrain", [sys.executable, PROGRAMS / "empty_plain.py", str(size)], tree=tree
            ),
            others=[command("mpiexec bare", bare, tree=tree)],
            goals=[Goal(against="mpiexec bare", factor=1.25, plus_s=EXECUTOR_S)],
        )
        yield alternate(row, rounds=arguments.rounds, say=arguments.say)
        spmd = [mpiexec(), "-n", str(size), sys.executable, PROGRAMS / "empty_plain.py", str(size)]
        exist = command("hpctrain", spmd, tree=tree, environment={"HPCTRAIN_LAUNCHER": "spmd"})
        yield alternate(
            replace(row, name=f"bootstrap {size} that exist", ours=exist),
            rounds=arguments.rounds,
            say=arguments.say,
        )
