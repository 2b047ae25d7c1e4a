"""``import``: what a user waits for before the first line of a script, and at a command line."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import PROGRAMS, Goal, Measured, Row, alternate, child_environment, command, run_command

SCRIPT = (
    "from hpctrain import RunConfig, ScalingConfig; from hpctrain.torch import TorchTrainer; "
    "TorchTrainer; ScalingConfig(num_workers=4); RunConfig(name='run')"
)
STATUS_S = 0.15


def measure(arguments: Namespace) -> Iterator[Measured]:
    tree = arguments.tree
    python = command("python", [sys.executable, "-c", "pass"], tree=tree)
    # A process takes tens of milliseconds, and a few of them are what matters here.
    rounds = arguments.rounds if arguments.rounds == 1 else 5 * arguments.rounds
    row = Row(
        name="import",
        ours=command("hpctrain", [sys.executable, "-c", SCRIPT], tree=tree),
        others=[command("numpy", [sys.executable, "-c", "import numpy"], tree=tree), python],
        goals=[Goal(against="numpy", minus="python")],
    )
    yield alternate(row, rounds=rounds)
    if not (tree / "hpctrain" / "cli" / "main.py").exists():
        return
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        argv = [sys.executable, PROGRAMS / "empty_plain.py", "1", folder]
        run_command(argv, cwd=folder, env=child_environment(tree), timeout_s=60)
        run_dir = next(Path(folder).glob("*/plan.json")).parent
        status = [sys.executable, "-m", "hpctrain.cli", "status", run_dir]
        row = Row(
            name="status",
            ours=command("hpctrain status", status, tree=tree),
            others=[python],
            goals=[Goal(against="python", plus_s=STATUS_S)],
        )
        yield alternate(row, rounds=rounds)
