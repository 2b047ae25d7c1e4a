"""``hpctrain top``: runs as they go, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, StorageOption, complete_run

if TYPE_CHECKING:
    from hpctrain.rundir.live_view import LiveView

COLUMNS = ("RUN", "STATE", "JOB", "RANKS", "REPORTS", "SPEED", "LEFT", "METRICS")
_NAMES = {"RUN": (24, 12)}
_OPTIONAL = ("JOB", "LEFT", "SPEED", "RANKS")
_WIDTH_OF_A_PIPE = 120


def top(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Directories of runs, or their names in --storage. None: all of --storage.",
            autocompletion=complete_run,
        ),
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    once: Annotated[
        bool, typer.Option("--once", help="Print one page, as where there is no terminal.")
    ] = False,
) -> None:
    """Show runs as they go: ranks, speed, curves, checkpoints, use of the nodes.

    It only reads the run directory: anybody who can may look. Keys: q quits, the arrows and Tab
    choose a run, Enter shows its ranks, s sorts them, Escape goes back.
    """
    import sys

    from hpctrain.cli.closed_runs import say_closed
    from hpctrain.cli.stored_runs import find_run, find_runs
    from hpctrain.cli.sweep_rows import with_sweeps
    from hpctrain.errors import ConfigError
    from hpctrain.launch.live_watch import RunsWatch
    from hpctrain.rundir.paths import RunPaths

    look: Callable[[], Sequence[LiveView]]
    if runs:
        named = [find_run(run, storage) for run in runs]
        look = RunsWatch(lambda: named).look
    else:
        if not storage.is_dir():
            raise ConfigError(
                f"{storage.absolute()} is not a directory. Name runs, or give the storage_path of "
                f"yours: hpctrain top --storage STORAGE."
            )
        say_closed(storage)
        watch = RunsWatch(lambda: [RunPaths(path.absolute()) for path in find_runs(storage)])
        look = with_sweeps(watch.look, storage)
    is_one = runs is not None and len(runs) == 1
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print_once(look, is_one=is_one, nothing=f"There are no runs in {storage.absolute()}.")
        return
    try:
        from hpctrain.cli.top_app import TopApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(
            "hpctrain top needs Textual, which is not installed: pip install 'hpctrain[top]'. "
            "Without it, 'hpctrain top --once' prints one page."
        ) from None
    app = TopApp(look, is_one=is_one)
    app.run()
    if app.error is not None:
        raise app.error


def _print_once(look: Callable[[], Sequence[LiveView]], *, is_one: bool, nothing: str) -> None:
    import sys
    import time

    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.run_view import GLANCE_INTERVAL_S, GLANCE_S
    from hpctrain.cli.terminal import width_of_output
    from hpctrain.own_time import Deadline
    from hpctrain.rundir.live_text import render_page

    # A run of another host is known to live once its status changes.
    views, deadline = look(), Deadline(GLANCE_S)
    while any(view.live is None for view in views) and not deadline.is_over:
        time.sleep(GLANCE_INTERVAL_S)
        views = look()
    width = width_of_output() or _WIDTH_OF_A_PIPE
    for view in () if is_one else views:
        if view.unanswered:
            say(f"warning: {view.name}: {view.unanswered}")
    text = nothing
    if is_one:
        text = "\n".join(render_page(views[0], width=width))
    elif views:
        text = "\n".join(table_lines(views, width=width))
    # A curve has letters that the C locale has not.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def table_lines(views: Sequence[LiveView], *, width: int) -> list[str]:
    """Return the list of runs as lines of text, the header first. Pure."""
    from hpctrain.cli.list_runs import fit_rows, render_rows
    from hpctrain.rundir.display import format_metrics, one_line
    from hpctrain.rundir.live_text import describe_left, describe_speed

    rows = [
        (
            view.name,
            f"{view.state} (damaged)" if view.status.damage else view.shown_state,
            view.status.job_id or "",
            "" if view.summary else str(view.status.world_size),
            "" if view.summary else str(view.reports),
            describe_speed(view) if view.is_at_work else "",
            describe_left(view),
            view.summary or format_metrics(view.metrics, most=3),
        )
        for view in views
    ]
    shown = [[one_line(cell) for cell in row] for row in rows]
    header, *fitting = fit_rows(
        shown, width=width, columns=COLUMNS, names=_NAMES, optional=_OPTIONAL
    )
    return [line[:width] for line in render_rows(fitting, header).splitlines()]
