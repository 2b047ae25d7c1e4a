"""``hpctrain list``: the runs of a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption

if TYPE_CHECKING:
    from hpctrain.cli.run_view import RunView

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
_NAMES = {"RUN": (24, 12), "CHECKPOINT": (16, 10)}
_OPTIONAL = ("ATTEMPT", "STARTED", "RANKS", "JOB")


_GAP = "  "
_LEAST_FOR_METRICS = 16
_MOST_UNKNOWN = 8


def list_runs(
    storage: Annotated[
        Path, typer.Argument(help="Directory of runs: RunConfig(storage_path=...), or of a sweep.")
    ] = DEFAULT_STORAGE,
    json: JsonOption = False,
) -> None:
    """List the runs and sweeps of a directory, the newest first.

    A sweep is one line; give its directory to list its trials.
    """
    import sys

    from hpctrain.cli.closed_runs import say_closed
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.run_view import view_runs
    from hpctrain.cli.stored_runs import find_runs
    from hpctrain.cli.sweep_rows import view_sweeps
    from hpctrain.errors import ConfigError
    from hpctrain.rundir.paths import RunPaths

    if not storage.is_dir():
        raise ConfigError(
            f"{storage.absolute()} is not a directory. Give the storage_path of your runs: "
            f"hpctrain list STORAGE."
        )
    say_closed(storage)
    views = view_runs([RunPaths(path.absolute()) for path in find_runs(storage)])
    if sweeps := view_sweeps(storage):
        views = sorted([*views, *sweeps], key=_begun_at, reverse=True)
    if unknown := [view.name for view in views if view.lacks_answer]:
        more = f" and {len(unknown) - _MOST_UNKNOWN} more" if len(unknown) > _MOST_UNKNOWN else ""
        named = ", ".join(unknown[:_MOST_UNKNOWN]) + more
        say(f"warning: Slurm did not answer, so it is unknown whether {named} still wait or run.")
    if json:
        print_json([view.to_json() for view in views])
        return
    if not views:
        print(f"There are no runs in {storage.absolute()}.")
    elif sys.stdout.isatty():
        _print_table(_rows(views))
    else:
        from hpctrain.cli.terminal import width_of_output

        rows: Sequence[Sequence[str]] = [_COLUMNS, *_rows(views)]
        if (width := width_of_output()) is not None:
            rows = fit_rows(rows[1:], width=width)
        print(render_rows(rows[1:], rows[0]))


def _begun_at(view: RunView) -> float:
    from hpctrain.cli.stored_runs import begun_at

    return begun_at(view.path) if view.sweep is None else view.sweep.began_at


def _rows(views: Sequence[RunView]) -> list[Sequence[str]]:
    from hpctrain.cli.run_view import format_age
    from hpctrain.rundir.display import format_metrics, one_line

    rows = [
        (
            f"{view.name} (of {view.recorded_name})" if view.recorded_name else view.name,
            f"{view.state} (damaged)" if view.status.damage else view.shown_state,
            view.status.job_id or "",
            str(view.status.attempt) if view.sweep is None else "",
            str(view.status.world_size) if view.sweep is None else "",
            str(view.reports) if view.sweep is None else "",
            "" if view.checkpoint is None else view.checkpoint.name,
            f"{format_age(view.status.started_at)} ago" if view.has_started else "",
            format_metrics(view.metrics, most=3) if view.sweep is None else view.sweep.describe(),
        )
        for view in views
    ]
    return [[one_line(cell) for cell in row] for row in rows]


def render_rows(rows: Sequence[Sequence[str]], columns: Sequence[str] = _COLUMNS) -> str:
    """Return a table for a file or a pipe. Pure."""
    lines = [columns, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def fit_rows(
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    columns: Sequence[str] = _COLUMNS,
    names: Mapping[str, tuple[int, int]] = _NAMES,
    optional: Sequence[str] = _OPTIONAL,
) -> list[Sequence[str]]:
    """Return the header and the rows of a table that fits a terminal. Pure.

    Names are shortened in their middle, optional columns are dropped, and metrics are cut at their
    end. The checkpoint, and a metric, stay.

    Parameters
    ----------
    rows
        Their cells; the last ones are metrics.
    width
        Of the terminal.
    columns
        The header.
    names
        Columns to shorten, with their minimum widths: first, and if that does not suffice.
    optional
        Columns to drop, in this order.
    """
    from hpctrain.rundir.display import shorten

    kept = list(range(len(columns)))
    lines = [list(columns), *(list(row) for row in rows)]

    def widths() -> dict[int, int]:
        return {column: max(len(line[column]) for line in lines) for column in kept}

    def room(column: int) -> int:
        """Return the width that is left for one of them."""
        others = sum(taken for other, taken in widths().items() if other != column)
        return width - others - len(_GAP) * (len(kept) - 1)

    metrics = columns.index("METRICS")
    least = min(_LEAST_FOR_METRICS, widths()[metrics])

    def shorten_names(stage: int) -> None:
        for name, at_least in names.items():
            column = columns.index(name)
            given = max(at_least[stage], room(column) - least + widths()[metrics])
            for line in lines:
                line[column] = shorten(line[column], given)

    shorten_names(0)
    for column in optional:
        if room(metrics) < least:
            kept.remove(columns.index(column))
    shorten_names(1)
    left = max(room(metrics), _LEAST_FOR_METRICS)
    for line in lines:
        if len(line[metrics]) > left:
            line[metrics] = f"{line[metrics][: left - 1]}…"
    return [[line[column] for column in kept] for line in lines]


_STYLES = {
    "stopping": "yellow",
    "running": "green",
    "finished": "bold",
    "failed": "red",
    "lost": "red",
    "refused": "red",
    "stopped": "yellow",
}


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    header, *fitting = fit_rows(rows, width=console.width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, len(_GAP), 0, 0))
    for column in header:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for row in fitting:
        # `Text`: a name in brackets is not markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(table)
