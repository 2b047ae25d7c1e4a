"""``hpctrain tune``: the trials of a sweep, the best of them, and the end of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import JsonOption

if TYPE_CHECKING:
    from hpctrain.tune.ledger import SweepPaths, SweepRecord
    from hpctrain.tune.trial import Trial

tune_app = typer.Typer(
    help="Look at the trials of a sweep, or stop one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
SweepArgument = Annotated[
    Path, typer.Argument(metavar="SWEEP", help="Directory of the sweep: storage_path/name.")
]
_COLUMNS = ("TRIAL", "STATE", "REPORTS", "CONFIG", "METRICS")
# Added to each report, for schedulers.
_ADDED = ("training_iteration", "time_total_s", "trial_id")


@tune_app.command()
def status(sweep: SweepArgument, json: JsonOption = False) -> None:
    """List the trials of a sweep, with their states and last metrics."""
    from hpctrain.printable import show_controls

    paths, record = _read(sweep)
    found = to_json(paths, record)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(found)
        return
    from hpctrain.cli.list_runs import fit_rows, render_rows, width_of_output

    print(show_controls(describe(found)))
    if not found["trials"]:
        return
    rows: Sequence[Sequence[str]] = [_COLUMNS, *map(_row, found["trials"])]
    if (width := width_of_output()) is not None:
        rows = fit_rows(
            rows[1:],
            width=width,
            columns=_COLUMNS,
            names={"CONFIG": (24, 12)},
            optional=("REPORTS",),
        )
    print(show_controls(render_rows(rows[1:], rows[0])))


@tune_app.command()
def best(
    sweep: SweepArgument,
    metric: Annotated[
        str, typer.Option("--metric", help="What to compare. Default: TuneConfig(metric=...).")
    ] = "",
    mode: Annotated[str, typer.Option("--mode", help="min or max. Default: TuneConfig's.")] = "",
    scope: Annotated[
        str,
        typer.Option("--scope", help="What of a trial: last, all, avg, last-5-avg or last-10-avg."),
    ] = "last",
    json: JsonOption = False,
) -> None:
    """Show the best trial of a sweep: its directory, configuration and last metrics."""
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_metrics
    from hpctrain.tune.result_grid import make_grid

    paths, record = _read(sweep)
    grid = make_grid(
        paths,
        record.trials,
        metric=metric or record.started.get("metric"),
        mode=mode or record.started.get("mode"),
    )
    if not len(grid):
        from hpctrain.errors import ConfigError

        raise ConfigError(f"the sweep {paths.root} has no trials yet.")
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
    lines = [
        str(result.path),
        f"config      {format_metrics(result.config)}",
        f"metrics     {format_metrics(result.metrics)}",
        f"checkpoint  {result.status.checkpoint or 'none'}",
    ]
    print(show_controls("\n".join(lines)))


@tune_app.command()
def stop(
    sweep: SweepArgument,
    trial: Annotated[str, typer.Argument(help="Name of the trial: trial_00003.")],
    now: Annotated[
        bool, typer.Option("--now", help="End it at once, without a last checkpoint.")
    ] = False,
) -> None:
    """Stop a trial at its next report; its results so far count, and the sweep goes on."""
    from hpctrain.checks import did_you_mean
    from hpctrain.cli.exit_codes import say
    from hpctrain.errors import ConfigError
    from hpctrain.launch.cancel import cancel_run
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.status import read_status

    paths, record = _read(sweep)
    if trial not in record.trials:
        meant = did_you_mean(trial, record.trials) or (
            f"They are listed by: hpctrain tune status {paths.root}"
        )
        raise ConfigError(f"the sweep {paths.root} has no trial {trial!r}. {meant}")
    if record.trials[trial].state.value == "PAUSED":
        say(f"{trial} is paused, and goes on when it has a slot. Stop it then.")
        return
    run = RunPaths(paths.run(trial))
    status = read_status(run)
    if status is None or status.state.is_final:
        state = "has not begun" if status is None else f"is {status.state.value}"
        say(f"{trial} {state}; there is nothing to stop.")
        return
    cancel_run(run, now=now)
    say(f"{trial} was ended." if now else f"asked {trial} to stop at its next report.")


def _read(sweep: Path) -> tuple[SweepPaths, SweepRecord]:
    from hpctrain.tune.ledger import SweepPaths, read_record

    paths = SweepPaths(root=sweep.absolute())
    return paths, read_record(paths)


def to_json(paths: SweepPaths, record: SweepRecord) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Not collective."""
    from hpctrain.launch.claim import find_claim
    from hpctrain.rundir.paths import RunPaths

    is_live = find_claim(RunPaths(paths.root)) is not None
    reason = None if record.ended is None else record.ended.get("reason")
    return {
        "name": paths.root.name,
        "path": str(paths.root),
        "state": "running" if is_live else "interrupted" if record.ended is None else "ended",
        "reason": reason or None,
        "metric": record.started.get("metric"),
        "mode": record.started.get("mode"),
        "seed": record.started.get("seed"),
        "trials": [_describe_trial(paths, trial) for trial in record.trials.values()],
    }


def _describe_trial(paths: SweepPaths, trial: Trial) -> dict[str, Any]:
    from hpctrain.rundir.metrics import read_last_report
    from hpctrain.rundir.paths import RunPaths

    reports, metrics = trial.reports, dict(trial.metrics)
    if not trial.state.is_final and (last := read_last_report(RunPaths(paths.run(trial.trial_id)))):
        reports, metrics = last["report"], last["metrics"]
    return {
        "trial": trial.trial_id,
        "path": str(paths.run(trial.trial_id)),
        "state": trial.state.value,
        "reports": reports,
        "config": dict(trial.config),
        "metrics": {name: value for name, value in metrics.items() if name not in _ADDED},
        "reason": trial.reason or None,
    }


def describe(found: dict[str, Any]) -> str:
    """Return the sweep in one line. Pure."""
    states = [trial["state"] for trial in found["trials"]]
    counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    line = f"{found['name']}: {found['state']}, {len(states)} trials"
    line += f" ({counts})" if counts else ""
    if found["reason"]:
        line += f"; {found['reason']}"
    if found["state"] == "interrupted":
        line += f"\ngo on with: Tuner.restore({found['path']!r}, trainable).fit()"
    return line


def _row(trial: dict[str, Any]) -> list[str]:
    from hpctrain.rundir.display import format_metrics, one_line

    cells = (
        trial["trial"],
        trial["state"],
        str(trial["reports"]),
        format_metrics(trial["config"]),
        (trial["reason"] or "").split("\n")[0]
        if trial["state"] == "ERROR"
        else format_metrics(trial["metrics"], most=3),
    )
    return [one_line(cell) for cell in cells]
