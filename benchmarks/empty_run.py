"""``empty-run``: from a cold process to the Result of a TorchTrainer that does nothing."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import PROGRAMS, Arm, Goal, Measured, Row, alternate, command, mpiexec

# Of the least that does the same: its ranks import torch once each, ours once together.
SHARE = {4: 0.55, 8: 0.45, 16: 0.45}
_CPU_GOAL = Goal(against="mpiexec bare", factor=0.4, of_cpu=True)


def torch_run(
    size: int,
    tree: Path,
    *,
    verbose: int = 0,
    script: str = "empty_torch.py",
    is_forked: bool = True,
) -> Arm:
    """Return ours."""
    name = f"hpctrain verbose={verbose}" if verbose else "hpctrain"
    argv = [sys.executable, PROGRAMS / script, str(size), str(verbose)]
    if is_forked:
        return command(name, argv, tree=tree)
    environment = {"HPCTRAIN_FORK_SERVER": "0"}
    return command(f"{name}, not forked", argv, tree=tree, environment=environment)


def bare_ranks(size: int, tree: Path) -> Arm:
    """Return the least that does the same: mpiexec and a process group."""
    argv = [mpiexec(), "-n", str(size), sys.executable, PROGRAMS / "bare_torch.py"]
    return command("mpiexec bare", argv, tree=tree)


def torchrun(size: int, tree: Path) -> Arm:
    """Return what users of one machine know."""
    argv = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}"]
    return command("torchrun bare", [*argv, "--standalone", PROGRAMS / "bare_torch.py"], tree=tree)


def measure(arguments: Namespace) -> Iterator[Measured]:
    for size in arguments.sizes or SHARE:
        row = Row(
            name=f"empty-run {size} ranks",
            ours=torch_run(size, arguments.tree),
            others=[
                bare_ranks(size, arguments.tree),
                torchrun(size, arguments.tree),
                torch_run(size, arguments.tree, verbose=1),
                torch_run(size, arguments.tree, is_forked=False),
            ],
            goals=[
                Goal(against="mpiexec bare", factor=SHARE.get(size, 1.1)),
                *([_CPU_GOAL] if size in SHARE else []),
                Goal(against="torchrun bare"),
            ],
        )
        yield alternate(row, rounds=arguments.rounds, say=arguments.say)
