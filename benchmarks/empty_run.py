"""``empty-run``: from a cold process to the Result of a TorchTrainer that does nothing."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import PROGRAMS, Arm, Goal, Measured, Row, alternate, command, mpiexec


def torch_run(size: int, tree: Path, *, verbose: int = 0, script: str = "empty_torch.py") -> Arm:
    """Return ours."""
    name = f"hpctrain verbose={verbose}" if verbose else "hpctrain"
    argv = [sys.executable, PROGRAMS / script, str(size), str(verbose)]
    return command(name, argv, tree=tree)


def bare_ranks(size: int, tree: Path) -> Arm:
    """Return the least that does the same: mpiexec and a process group."""
    argv = [mpiexec(), "-n", str(size), sys.executable, PROGRAMS / "bare_torch.py"]
    return command("mpiexec bare", argv, tree=tree)


def torchrun(size: int, tree: Path) -> Arm:
    """Return what users of one machine know."""
    argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}"]
    return command("torchrun bare", [*argv, "--standalone", PROGRAMS / "bare_torch.py"], tree=tree)


def measure(arguments: Namespace) -> Iterator[Measured]:
    for size in arguments.sizes or (2, 4):
        row = Row(
            name=f"empty-run {size} ranks",
            ours=torch_run(size, arguments.tree),
            others=[
                bare_ranks(size, arguments.tree),
                torchrun(size, arguments.tree),
                torch_run(size, arguments.tree, verbose=1),
            ],
            goals=[
                Goal(against="mpiexec bare", factor=1.1),
                Goal(against="torchrun bare"),
            ],
        )
        yield alternate(row, rounds=arguments.rounds, say=arguments.say)
