"""``restart-torch``: a rank with torch is killed; how long until all are in their first step again.

On one machine, where the process that has imported torch outlives the attempts. Against the time
from ``fit()`` to the first step of a group whose ranks each import torch, as before they were
forked. That of the same run stands beside it.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, output_of
from restart import AIM, FACTOR, NOT_FORKED, first_step, restart_rounds

NUM_RANKS = 4
TIMEOUT_S = 120.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    yield judge(
        f"torch restart {NUM_RANKS} ranks",
        "restart",
        restart_rounds(arguments, "restart with torch", lambda forks: _run(arguments.tree, forks)),
        [
            Goal(against=arm, factor=factor)
            for arm in (NOT_FORKED, "cold start")
            for factor in (FACTOR, AIM)
        ],
        notes={"CPU": "of the ranks alone; the fork server has the import"},
    )


def _run(tree: Path, forks: bool) -> tuple[Sample, Sample]:
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as name:
        folder = Path(name)
        argv = [sys.executable, PROGRAMS / "killed_torch.py", NUM_RANKS, folder]
        environment = child_environment(tree, {"HPCTRAIN_FORK_SERVER": str(int(forks))})
        output_of(argv, cwd=name, env=environment, timeout_s=TIMEOUT_S)
        killed, fit = (float((folder / stamp).read_text()) for stamp in ("killed", "fit"))
        restart, cold = (
            first_step(folder, attempt, begin, NUM_RANKS)
            for attempt, begin in ((2, killed), (1, fit))
        )
        return restart, cold
