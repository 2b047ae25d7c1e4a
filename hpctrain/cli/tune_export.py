"""``hpctrain tune export``: the reports of all trials as one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import JsonOption
from hpctrain.cli.tune_sweep import SweepArgument, read_sweep

if TYPE_CHECKING:
    from hpctrain.tune.export import ExportedReports


def export(
    sweep: SweepArgument,
    dest: Annotated[
        Path, typer.Argument(metavar="FILE", help="What is made: NAME.parquet or NAME.csv.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Write a table with a row for each report of each trial, for other programs.

    It has the state, metrics and configuration of each trial. A sweep that still runs is written as
    far as it is.
    """
    from hpctrain.tune.export import export_reports
    from hpctrain.tune.report_table import TableTrial

    paths, record = read_sweep(sweep)
    trials = [TableTrial(trial=trial, run=paths.run(name)) for name, trial in record.trials.items()]
    exported = export_reports(trials, dest, overwrite=force)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(paths.root, exported))
    else:
        print(render(exported))


def render(exported: ExportedReports) -> str:
    """Return what was written, in a line. Pure."""
    from hpctrain.printable import show_controls

    trials = "1 trial" if exported.num_trials == 1 else f"{exported.num_trials} trials"
    rows = "1 row" if exported.num_rows == 1 else f"{exported.num_rows} rows"
    return show_controls(f"{exported.path}: {rows} of {trials}, {len(exported.columns)} columns")


def to_json(sweep: Path, exported: ExportedReports) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Pure."""
    return {
        "sweep": str(sweep),
        "path": str(exported.path),
        "trials": exported.num_trials,
        "rows": exported.num_rows,
        "columns": list(exported.columns),
    }
