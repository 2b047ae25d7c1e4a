"""``hpctrain tune``: the trials of a sweep, the best of them, and the end of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import JsonOption
from hpctrain.cli.tune_export import export
from hpctrain.cli.tune_jobs import TrialJob, find_jobs
from hpctrain.cli.tune_logs import logs
from hpctrain.cli.tune_stop import stop
from hpctrain.cli.tune_sweep import SweepArgument, read_sweep

if TYPE_CHECKING:
    from hpctrain.result import Result
    from hpctrain.tune.ledger import SweepPaths, SweepRecord
    from hpctrain.tune.trial import Trial

tune_app = typer.Typer(
    help="Look at the trials of a sweep, export their reports, or stop them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
_COLUMNS = ("TRIAL", "STATE", "REPORTS", "CONFIG", "METRICS")
_COLUMNS_WITH_JOBS = ("TRIAL", "STATE", "JOB", "REPORTS", "CONFIG", "METRICS")
# Added to each report, for schedulers.
_ADDED = ("training_iteration", "time_total_s", "trial_id")


@tune_app.command()
def status(
    sweep: SweepArgument,
    json: JsonOption = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show what changes, until the sweep ends or stops."),
    ] = False,
) -> None:
    """List the trials of a sweep, with their states and last metrics."""
    if json and follow:
        from hpctrain.errors import ConfigError

        raise ConfigError("hpctrain tune status: give --json or --follow, not both.")
    paths, record = read_sweep(sweep)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(paths, record))
        return
    if follow:
        from hpctrain.cli.tune_follow import follow as show_changes

        has_jobs = record.started.get("launcher") == "slurm"
        show_changes(paths, lambda: _render(*read_sweep(sweep)), has_jobs=has_jobs)
        return
    print(_render(paths, record)[0])


def _render(paths: SweepPaths, record: SweepRecord) -> tuple[str, bool]:
    """Return the table of the trials, and whether the sweep is at work."""
    from hpctrain.cli.list_runs import fit_rows, render_rows
    from hpctrain.cli.terminal import width_of_output
    from hpctrain.printable import show_controls
    from hpctrain.tune.tuner_life import describe_silence

    found, width = to_json(paths, record), width_of_output()
    text, is_at_work = describe(found, width=width), found["state"] == "running"
    if is_at_work and (silence := describe_silence(paths)):
        text += f"\n{silence}. If it is gone, {_explain_restore(found)}"
    text = show_controls(text)
    if not found["trials"]:
        return text, is_at_work
    has_jobs = any(trial["job_id"] for trial in found["trials"])
    columns = _COLUMNS_WITH_JOBS if has_jobs else _COLUMNS
    cells = [_row(trial, has_jobs=has_jobs) for trial in found["trials"]]
    rows: Sequence[Sequence[str]] = [columns, *cells]
    if width is not None:
        rows = fit_rows(
            cells, width=width, columns=columns, names={"CONFIG": (24, 12)}, optional=("REPORTS",)
        )
    return f"{text}\n{show_controls(render_rows(rows[1:], rows[0]))}", is_at_work


@tune_app.command()
def best(
    sweep: SweepArgument,
    metric: Annotated[
        str, typer.Option("--metric", help="What to compare. Default: that of the sweep.")
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", help="min or max. Default: that of the sweep.")
    ] = "",
    scope: Annotated[
        str,
        typer.Option("--scope", help="What of a trial: last, all, avg, last-5-avg or last-10-avg."),
    ] = "last",
    json: JsonOption = False,
) -> None:
    """Show the best trial of a sweep: its directory, configuration and last metrics."""
    from hpctrain.checks import check_choice
    from hpctrain.errors import ConfigError
    from hpctrain.tune.result_grid import SCOPES, make_grid

    check_choice("--scope", scope, SCOPES)
    if mode:
        check_choice("--mode", mode, ("min", "max"))
    paths, record = read_sweep(sweep)
    if not record.trials:
        raise ConfigError(f"the sweep {paths.root} has no trials yet.")
    if len(record.trials) > 1:
        _check_comparison(record, metric, mode)
    grid = make_grid(
        paths,
        record.trials,
        metric=metric or record.started.get("metric"),
        mode=mode or record.started.get("mode"),
    )
    result = grid.get_best_result(scope=scope)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(
            {
                "trial": Path(result.path).name,
                "path": str(result.path),
                "config": result.config,
                "metrics": result.metrics,
                "checkpoint": result.status.checkpoint,
            }
        )
        return
    from hpctrain.cli.terminal import width_of_output

    print(render_best(result, width=width_of_output()))


def _check_comparison(record: SweepRecord, metric: str, mode: str) -> None:
    """Refuse to compare trials by a metric whose mode is not known."""
    from hpctrain.errors import ConfigError

    own_metric, own_mode = record.started.get("metric"), record.started.get("mode")
    if metric and own_metric and metric != own_metric and not mode:
        raise ConfigError(
            f"--metric {metric} needs --mode, too: min or max. That of the sweep is of "
            f"{own_metric!r}."
        )
    lacks = [
        option
        for option, found in (("--metric", metric or own_metric), ("--mode", mode or own_mode))
        if not found
    ]
    if lacks:
        raise ConfigError(
            f"the sweep names no metric and mode to compare its trials by: {' and '.join(lacks)} "
            f"{'is' if len(lacks) == 1 else 'are'} needed, such as --metric loss --mode min."
        )


tune_app.command()(export)
tune_app.command()(logs)
tune_app.command()(stop)


def to_json(paths: SweepPaths, record: SweepRecord) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Not collective."""
    from hpctrain.tune.place import find_original, find_state

    state = find_state(paths, record)
    jobs = find_jobs(paths, record)
    return {
        "name": paths.root.name,
        "path": str(paths.root),
        "state": state,
        "reason": record.reason,
        "copy_of": find_original(paths, record),
        "metric": record.started.get("metric"),
        "mode": record.started.get("mode"),
        "seed": record.started.get("seed"),
        "trials": [
            {**_describe_trial(paths, trial, state), **jobs.get(name, TrialJob()).to_json()}
            for name, trial in record.trials.items()
        ],
    }


def _describe_trial(paths: SweepPaths, trial: Trial, state: str) -> dict[str, Any]:
    from hpctrain.rundir.metrics import read_last_report
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.tune.overview import seen_state

    reports, metrics = trial.reports, dict(trial.metrics)
    if not trial.state.is_final and (last := read_last_report(RunPaths(paths.run(trial.trial_id)))):
        reports, metrics = last["report"], last["metrics"]
    return {
        "trial": trial.trial_id,
        "path": str(paths.run(trial.trial_id)),
        "state": seen_state(paths, trial, state).value,
        "reports": reports,
        "config": dict(trial.config),
        "metrics": {name: value for name, value in metrics.items() if name not in _ADDED},
        "reason": trial.reason or None,
    }


def render_best(result: Result, *, width: int | None) -> str:
    """Return the best trial as text. Not collective.

    Parameters
    ----------
    result
        Its result.
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.terminal import wrap
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_metrics

    lines = [str(result.path)]
    for name, value in (
        ("config", format_metrics(result.config)),
        ("metrics", format_metrics(result.metrics)),
        ("checkpoint", result.status.checkpoint or "none"),
    ):
        lines += wrap(f"{name:<12}", value, width)
    return show_controls("\n".join(lines))


def describe(found: dict[str, Any], *, width: int | None) -> str:
    """Return the state of the sweep, in one line where it fits. Pure.

    Parameters
    ----------
    found
        As `to_json` returns it.
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.terminal import wrap
    from hpctrain.rundir.display import counted

    states = [trial["state"] for trial in found["trials"]]
    counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    line = f"{found['name']}: {found['state']}, {counted(len(states), 'trial')}"
    line += f" ({counts})" if counts else ""
    if found["reason"]:
        line += f"; {found['reason'].splitlines()[0]}"
    if found["copy_of"]:
        line += f"; a copy of {found['copy_of']}"
    line = "\n".join(wrap("", line, width))
    if found["state"] in ("interrupted", "stopped"):
        line += f"\n{_explain_restore(found)}"
        line += _explain_retry(found["trials"])
    return line


def _explain_restore(found: dict[str, Any]) -> str:
    return f"go on with: Tuner.restore({found['path']!r}, trainable).fit()"


def _explain_retry(trials: Sequence[dict[str, Any]]) -> str:
    """Return how trials that have failed run again, too; empty if there are none."""
    from hpctrain.tune.metric_check import is_unreported

    reasons = [trial["reason"] or "" for trial in trials if trial["state"] == "ERROR"]
    if any(map(is_unreported, reasons)):
        return (
            "\n  with restart_errored=True trials that failed begin anew: mend the function first"
        )
    return "\n  with resume_errored=True trials that failed go on, too" if reasons else ""


def _row(trial: dict[str, Any], *, has_jobs: bool) -> list[str]:
    from hpctrain.rundir.display import format_metrics, one_line

    job = TrialJob(state=trial["job_state"], reason=trial["job_reason"])
    metrics = format_metrics(trial["metrics"], most=3)
    cells = (
        trial["trial"],
        trial["state"],
        *([trial["job_id"] or ""] if has_jobs else []),
        str(trial["reports"]),
        format_metrics(trial["config"]),
        (trial["reason"] or "").split("\n")[0]
        if trial["state"] == "ERROR" or not (trial["metrics"] or job.wait)
        else "  ".join(filter(None, (job.wait, metrics))),
    )
    return [one_line(cell) for cell in cells]
