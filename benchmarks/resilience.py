"""Every benchmark of what it costs to live through failures, with one command.

::

    python benchmarks/resilience.py                     # everything, some minutes
    python benchmarks/resilience.py --rounds 7 --only restart
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import console
import control
import growth
import restart
import restart_torch
from arms import Measured
from spine import run_rows

ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    "restart": restart.measure,
    "restart-torch": restart_torch.measure,
    "growth": growth.measure,
    "control": control.measure,
    "console": console.measure,
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=7)
