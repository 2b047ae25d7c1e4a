"""``hpctrain why``: why a job waits or has ended, and what to do about it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, StorageOption, complete_run
from hpctrain.errors import LaunchError

if TYPE_CHECKING:
    from hpctrain.cli.run_view import RunView
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.slurm.why import Explanation

_KEY_WIDTH = 12
_JOB_ID = re.compile(r"[1-9]\d*(_(\d+|\[.*\])|\+\d+)?")
_VERDICTS = {
    "waits": "starts by itself",
    "held": "starts when it is released",
    "admin": "starts when the site changes something",
    "never": "never starts as it is",
    "running": "runs",
    "suspended": "is suspended",
    "ended": "has ended",
}


def why(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN",
            help="Number of a Slurm job, directory of a run, or its name in --storage.",
            autocompletion=complete_run,
        ),
    ],
    storage: StorageOption = DEFAULT_STORAGE,
    json: JsonOption = False,
) -> None:
    """Explain why a job waits, or why it ended.

    Exits with 3 if it never starts, with 4 if Slurm does not know or does not answer.
    """
    from hpctrain.cli.exit_codes import FAILED, NEVER_STARTS, say
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.run_view import view_run

    paths = _find_run(job, storage)
    answer, view = None, None if paths is None else view_run(paths)
    try:
        answer, view = _explain(job, view)
    except LaunchError as error:
        say(str(error))
        if view is None:
            raise typer.Exit(FAILED) from None
    view = _with_slow_nodes(view)
    if json:
        print_json(to_json(answer, view))
    else:
        from hpctrain.cli.terminal import width_of_output

        print(render(answer, view, width=width_of_output()))
    if answer is not None and answer.verdict.value == "never":
        raise typer.Exit(NEVER_STARTS)


def render(answer: Explanation | None, view: RunView | None, *, width: int | None) -> str:
    """Return the explanation as text. Pure, except for the time of day.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program, which is given a line for each field.
    """
    from hpctrain.cli.terminal import wrap
    from hpctrain.printable import show_controls

    rows = [] if answer is None else _rows_of_job(answer)
    if view is not None:
        waits_for_person = answer is not None and answer.verdict.value in ("never", "held", "admin")
        rows += _rows_of_run(view, with_step=not waits_for_person)
    lines = [_title(answer, view)]
    for key, value in rows:
        lines += wrap(f"  {key:<{_KEY_WIDTH}}", value, width)
    return show_controls("\n".join(lines))


def to_json(answer: Explanation | None, view: RunView | None) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    job = None if answer is None else answer.job
    return {
        "job_id": None if job is None else job.job_id,
        "job_state": None if job is None else job.state,
        "job_reason": None if job is None else job.reason,
        "exit_code": None if job is None else job.exit_code,
        "verdict": None if answer is None else answer.verdict.value,
        "meaning": None if answer is None else answer.meaning,
        "details": [] if answer is None else list(answer.details),
        "starts_at": None if answer is None else answer.starts_at,
        "next": _next(answer, view),
        "path": None if view is None else str(view.path),
        "state": None if view is None else view.state,
        "error": None if view is None else view.status.error,
        "slow_nodes": [] if view is None else list(view.slow_nodes),
    }


def _with_slow_nodes(view: RunView | None) -> RunView | None:
    """Return a run with what its ledger says of slow nodes."""
    from contextlib import suppress
    from dataclasses import replace

    from hpctrain.errors import DamagedFileError
    from hpctrain.rundir.attempts import name_slow_nodes
    from hpctrain.rundir.ledger import read_events
    from hpctrain.rundir.paths import RunPaths

    if view is not None:
        # A ledger that cannot be read does not hide why the run failed.
        with suppress(OSError, DamagedFileError):
            found = name_slow_nodes(read_events(RunPaths(view.path)))
            return replace(view, slow_nodes=tuple(found))
    return view


def _find_run(job: str, storage: Path) -> RunPaths | None:
    """Return the run that is meant; None if it is a job that is none of hpctrain's."""
    from hpctrain.cli.stored_runs import find_run, is_run

    if _JOB_ID.fullmatch(job) and not is_run(Path(job)) and not is_run(storage / job):
        return None
    return find_run(Path(job), storage)


def _explain(job: str, view: RunView | None) -> tuple[Explanation | None, RunView | None]:
    """Return the explanation of a job, and the run that it is of."""
    from hpctrain.slurm.why import explain_job

    if view is None:
        # Tasks of an array that wait are one job to Slurm.
        answer = explain_job(job.partition("_[")[0], is_run=False)
        view = _run_of(answer.job.script)
        if view is None:
            return answer, None
        return explain_job(answer.job.job_id, is_run=True, cancel=_cancel(view)), view
    if view.status.job_id is None or (view.status.state.is_final and view.job_state is None):
        # Of a run that has ended its directory knows more than Slurm.
        return None, view
    return explain_job(view.status.job_id, is_run=True, cancel=_cancel(view)), view


def _cancel(view: RunView) -> str:
    from shlex import quote

    return f"hpctrain cancel {quote(str(view.path))}"


def _run_of(script: str) -> RunView | None:
    """Return the run whose batch script a job runs; None if it is none of hpctrain's."""
    from hpctrain.cli.run_view import view_run
    from hpctrain.cli.stored_runs import is_run
    from hpctrain.rundir.paths import RunPaths

    for folder in list(Path(script).parents)[:3] if script else ():
        if is_run(folder) and str(RunPaths(folder).batch_script) == script:
            return view_run(RunPaths(folder))
    return None


def _title(answer: Explanation | None, view: RunView | None) -> str:
    of_run = "" if view is None else f"{view.name}: {view.shown_state}"
    if answer is None:
        return of_run
    job = answer.job
    state = job.state.lower().replace("_", " ")
    since = ""
    if job.is_pending and job.submit_time is not None:
        from hpctrain.cli.run_view import format_age

        since = f" for {format_age(job.submit_time)}"
    task = f" (task {job.array_task})" if job.array_task else ""
    of_job = f"job {job.job_id}{task}: {state}{since}"
    return f"{of_run}, {of_job}" if of_run else of_job


def _rows_of_job(answer: Explanation) -> list[tuple[str, str]]:
    job = answer.job
    rows = [("verdict", _VERDICTS[answer.verdict.value])]
    if answer.starts_at is not None:
        rows[0] = ("verdict", f"{rows[0][1]}, {_moment(answer.starts_at)} by Slurm's estimate")
    if job.reason not in ("", "None"):
        rows.append(("reason", job.reason))
    if job.is_final:
        rows.append(("exit code", job.exit_code))
        if job.log and job.exit_code != "0:0":
            rows.append(("log", job.log))
    rows.append(("meaning", answer.meaning))
    rows += [
        ("limit" if "at a time" in text or "at most" in text else "detail", text)
        for text in answer.details
    ]
    if answer.step:
        rows.append(("next", answer.step))
    return rows


def _rows_of_run(view: RunView, *, with_step: bool) -> list[tuple[str, str]]:
    rows = [("run", str(view.path))]
    if view.status.error is not None:
        rows.append(("error", view.status.error))
    rows += [("slow", what) for what in view.slow_nodes]
    if with_step and view.next_step is not None:
        rows.append(("run's next", view.next_step))
    return rows


def _next(answer: Explanation | None, view: RunView | None) -> str | None:
    if answer is not None and answer.step:
        return answer.step
    return None if view is None else view.next_step


def _moment(at: float) -> str:
    today = time.strftime("%Y-%m-%d")
    day, clock = (
        time.strftime("%Y-%m-%d", time.localtime(at)),
        time.strftime("%H:%M", time.localtime(at)),
    )
    return f"at {clock}" if day == today else f"on {day} at {clock}"
