"""``empty-run-import-torch``: the same when the user's script begins with ``import torch``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

from arms import Goal, Measured, Row, alternate, command
from empty_run import bare_ranks, torch_run


def measure(arguments: Namespace) -> Iterator[Measured]:
    tree = arguments.tree
    for size in arguments.sizes or (2, 4):
        row = Row(
            name=f"import-torch {size} ranks",
            ours=torch_run(size, tree, script="empty_import_torch.py"),
            others=[
                bare_ranks(size, tree),
                command("import torch", [sys.executable, "-c", "import torch"], tree=tree),
            ],
            goals=[Goal(against="mpiexec bare", plus=("import torch",))],
        )
        yield alternate(row, rounds=arguments.rounds, say=arguments.say)
