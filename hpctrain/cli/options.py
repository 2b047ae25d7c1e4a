"""Options and arguments that several verbs share, so that they read alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Directory of the run, or its name in --storage."),
]
StorageOption = Annotated[
    Path,
    typer.Option("--storage", "-s", help="Directory of runs: RunConfig(storage_path=...)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", "--dryrun", help="Say what would be done, and do nothing.")
]

DEFAULT_STORAGE = Path("hpctrain_runs")
"""Where RunConfig puts runs by default."""
