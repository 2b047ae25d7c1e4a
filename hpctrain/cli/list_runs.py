"""``hpctrain list``: the runs of a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption

_COLUMNS = (
    "RUN",
    "STATE",
    "JOB",
    "ATTEMPT",
    "RANKS",
    "REPORTS",
    "CHECKPOINT",
    "STARTED",
    "METRICS",
)


def list_runs(
    storage: Annotated[
        Path, typer.Argument(help="Directory of runs: RunConfig(storage_path=...).")
    ] = DEFAULT_STORAGE,
    json: JsonOption = False,
) -> None:
    """List the runs of a directory, the newest first."""
    import sys

    from hpctrain.cli.run_view import (
        find_runs,
        format_age,
        print_json,
        view_runs,
    )
    from hpctrain.errors import ConfigError
    from hpctrain.rundir.display import format_metrics
    from hpctrain.rundir.paths import RunPaths

    if not storage.is_dir():
        raise ConfigError(
            f"{storage.absolute()} is not a directory. Give the storage_path of your runs: "
            f"hpctrain list STORAGE."
        )
    views = view_runs([RunPaths(path.absolute()) for path in find_runs(storage)])
    if json:
        print_json([view.to_json() for view in views])
        return
    if not views:
        print(f"There are no runs in {storage.absolute()}.")
        return
    rows = [
        (
            view.name,
            view.state,
            view.status.job_id or "",
            str(view.status.attempt),
            str(view.status.world_size),
            str(view.reports),
            "" if view.checkpoint is None else view.checkpoint.name,
            f"{format_age(view.status.started_at)} ago" if view.status.started_at else "",
            format_metrics(view.metrics, most=3),
        )
        for view in views
    ]
    if sys.stdout.isatty():
        _print_table(rows)
    else:
        print(render_rows(rows))


def render_rows(rows: Sequence[Sequence[str]], columns: Sequence[str] = _COLUMNS) -> str:
    """Return a table for a file or a pipe. Pure."""
    lines = [columns, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


_STYLES = {
    "running": "green",
    "finished": "bold",
    "failed": "red",
    "lost": "red",
    "stopped": "yellow",
}


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, no_wrap=column != "METRICS", overflow="ellipsis")
    for row in rows:
        # `Text`: a name in brackets is not markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)
