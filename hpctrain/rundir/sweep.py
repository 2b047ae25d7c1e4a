"""Whether a run is a trial of a sweep: then it lies in the directory of the sweep."""

from __future__ import annotations

import os
from pathlib import Path

LEDGER_OF_SWEEP = "tune.jsonl"


def is_sweep(root: Path) -> bool:
    """Return whether a directory is that of a sweep, as far as it can be seen. Not collective."""
    # pathlib raises where a directory may not be looked into, or its server is gone.
    return os.path.isfile(root / LEDGER_OF_SWEEP)


def sweep_of(run: Path) -> str | None:
    """Return the name of the sweep that a run is a trial of; None if it is of none.

    Not collective.
    """
    above = run.absolute().parent
    return above.name if is_sweep(above) else None
