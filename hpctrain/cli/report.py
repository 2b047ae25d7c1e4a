"""``hpctrain report``: a page about a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import (
    DEFAULT_STORAGE,
    JsonOption,
    RunArgument,
    StorageOption,
    complete_run,
)

if TYPE_CHECKING:
    from hpctrain.launch.run_diff import Difference
    from hpctrain.run_report.facts import RunFacts
    from hpctrain.rundir.paths import RunPaths

_KEY_WIDTH = 12


def report(
    run: RunArgument,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            "--compare",
            metavar="RUN2",
            help="Another run, to show over it. May be given several times.",
            autocompletion=complete_run,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="Where the page goes.",
            show_default="NAME-report.html; none with --json",
        ),
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    json: JsonOption = False,
) -> None:
    """Write a page about a run or a sweep: curves, attempts, checkpoints, where the time went.

    It is one HTML file that needs no network. It reads only the run directory, whatever the state
    of the run, and does not query Slurm.
    """
    import time

    from hpctrain.cli.report_sweep import find_sweep, report_sweep
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.run_report.facts import read_facts

    if (sweep := find_sweep(run, storage)) is not None:
        report_sweep(sweep, is_compared=bool(compare), output=output, json=json)
        return
    paths = [find_run(each, storage) for each in (run, *(compare or ()))]
    target = output
    if target is None and not json:
        target = Path(f"{paths[0].root.name}-report.html")
    if target is not None:
        check_target(target)
    runs = [read_facts(each) for each in paths]
    differences = {str(other.root): find_differences(paths[0], other) for other in paths[1:]}
    now = time.time()
    if target is not None:
        _write(target, runs, differences, now=now)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(runs, differences, target))
    else:
        from hpctrain.cli.terminal import width_of_output

        assert target is not None
        print(render(runs, target, width=width_of_output(), now=now))


def check_target(target: Path) -> None:
    """Return if a page can be written there. Not collective.

    Raises
    ------
    ConfigError
        If there is no such directory, or another file than a page of this command.
    """
    from hpctrain.errors import ConfigError

    if target.is_dir():
        raise ConfigError(f"--output={target}: it is a directory. Give a file in it.")
    if target.exists() and not target.is_file():
        raise ConfigError(f"--output={target}: it is a device or a pipe. Give the path of a file.")
    if not target.parent.is_dir():
        raise ConfigError(
            f"--output={target}: there is no directory {target.parent}. Make it, or give another "
            f"file."
        )
    if target.exists() and not _is_page(target):
        raise ConfigError(
            f"--output={target}: there is a file that is not a report of a run, and it is not "
            f"replaced. Remove it, or give another file."
        )


def find_differences(first: RunPaths, other: RunPaths) -> list[Difference] | str:
    """Return how two runs differ, or why that is not known. Not collective."""
    from hpctrain.errors import HpctrainError
    from hpctrain.launch.run_diff import compare_runs

    try:
        return compare_runs(first, other)
    except (HpctrainError, OSError) as error:
        return f"They cannot be compared: {error}"


def render(runs: Sequence[RunFacts], target: Path, *, width: int | None, now: float) -> str:
    """Return what the page shows in a few lines. Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program.
    now
        Seconds since the epoch.
    """
    from hpctrain.printable import show_controls

    lines = []
    for each in runs:
        lines.append(f"{each.name}: {each.describe_state(now)}")
        for key, value in _summary(each):
            lines += wrap_row(key, value, width)
    lines += wrap_row("page", str(target), width)
    return show_controls("\n".join(lines))


def to_json(
    runs: Sequence[RunFacts],
    differences: dict[str, list[Difference] | str],
    target: Path | None,
) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Not collective."""
    from dataclasses import asdict

    from hpctrain.run_report.report_json import run_to_json

    return {
        "output": None if target is None else str(target),
        "runs": [run_to_json(each) for each in runs],
        "sweeps": [],
        "comparisons": [
            {
                "path": path,
                "differences": [] if isinstance(found, str) else [asdict(each) for each in found],
                "error": found if isinstance(found, str) else None,
            }
            for path, found in differences.items()
        ],
    }


def _summary(run: RunFacts) -> list[tuple[str, str]]:
    from hpctrain.run_report.markup import format_hours, format_span, percent

    used = run.efficiency
    repeated = f", {run.num_repeated} of them made again" if run.num_repeated else ""
    rows = [
        ("attempts", str(len(run.attempts))),
        ("reports", f"{run.num_reports}{repeated}"),
    ]
    rows += [("slow", what) for what in run.slow_nodes]
    if used.shares:
        parts = [
            f"{share.use.value} {percent(share.seconds, used.seconds)}"
            for share in sorted(used.shares, key=lambda share: -share.seconds)
        ]
        rows.append(("time", f"{format_span(used.seconds)}: {', '.join(parts)}"))
    if used.parts:
        trained = sum(each.seconds or 0.0 for each in used.parts)
        parts = [
            f"{each.part.value} "
            f"{'not seen' if each.seconds is None else percent(each.seconds, trained)}"
            for each in used.parts
        ]
        rows.append(("training", f"{format_span(trained)}: {', '.join(parts)}"))
    for kind, total, useful, lost in (
        ("core-hours", used.core_hours, used.useful[0], used.lost[0]),
        ("GPU-hours", used.gpu_hours, used.useful[1], used.lost[1]),
    ):
        if total is None:
            rows.append((kind, "not known"))
        elif total and (useful is None or lost is None):
            rows.append((kind, f"{format_hours(total)}, of which training and lost are not known"))
        elif total:
            parts = [f"training {format_hours(useful)}", f"lost {format_hours(lost)}"]
            rows.append((kind, ", ".join([format_hours(total), *parts])))
    return [*rows, *(("damaged", what) for what in run.damage)]


def wrap_row(key: str, value: str, width: int | None) -> list[str]:
    """Return a name and its value in lines that fit the terminal. Pure."""
    from hpctrain.cli.terminal import wrap

    return wrap(f"  {key:<{_KEY_WIDTH}}", value.replace("\n", " "), width)


def _is_page(target: Path) -> bool:
    from hpctrain.regular_file import open_regular
    from hpctrain.run_report.page import MARK

    try:
        with open_regular(target) as file:
            return MARK.encode() in file.read(4096)
    except OSError:
        return False


def _write(
    target: Path,
    runs: Sequence[RunFacts],
    differences: dict[str, list[Difference] | str],
    *,
    now: float,
) -> None:
    from hpctrain.run_report.page import render_page
    from hpctrain.rundir.files import write_atomic

    page = render_page(
        runs,
        differences={
            path: found if isinstance(found, str) else [(d.field, d.first, d.second) for d in found]
            for path, found in differences.items()
        },
        now=now,
    )
    write_atomic(target, page.encode(errors="backslashreplace"))
