"""``hpctrain sync``: upload logger data from nodes without internet access."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, StorageOption, complete_run


def sync(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Directory of the run, or its name in --storage.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    all_runs: Annotated[
        bool, typer.Option("--all", help="All runs of --storage, instead of RUN.")
    ] = False,
    mlflow_uri: Annotated[
        str,
        typer.Option("--mlflow-uri", help="Server of MLflow.", show_default="MLFLOW_TRACKING_URI"),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="How long one upload of a tracker may take."),
    ] = 3600,
) -> None:
    """Upload the data of W&B, Comet and MLflow loggers in a run directory.

    Call it on a login node. Uploaded data is not sent again. The exit code is 4 if something was
    not sent.
    """
    from hpctrain.callbacks.sync import sync_run
    from hpctrain.cli.closed_runs import say_closed
    from hpctrain.cli.exit_codes import FAILED
    from hpctrain.cli.run_view import view_run
    from hpctrain.cli.stored_runs import find_run, find_runs
    from hpctrain.errors import ConfigError
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import one_line
    from hpctrain.rundir.paths import RunPaths

    if all_runs == (run is not None):
        raise ConfigError("give either a RUN or --all: hpctrain sync RUN.")
    if run is not None:
        found = [find_run(run, storage)]
    else:
        say_closed(storage)
        found = [RunPaths(path.absolute()) for path in find_runs(storage)]
    is_complete = True
    for paths in found:
        is_over = view_run(paths).live is False
        nothing = True
        outcomes = sync_run(
            paths.root, is_over=is_over, timeout_s=timeout, mlflow_uri=mlflow_uri or None
        )
        for outcome in outcomes:
            nothing, is_complete = False, is_complete and outcome.is_sent
            line = f"{paths.root.name}  {outcome.tracker}: {one_line(outcome.text)}"
            print(show_controls(line), flush=True)
        if nothing:
            print(show_controls(f"{paths.root.name}  nothing to send"), flush=True)
    if not is_complete:
        raise SystemExit(FAILED)
