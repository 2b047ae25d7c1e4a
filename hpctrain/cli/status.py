"""``hpctrain status``: the state of one run."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.cli.run_view import RunView
    from hpctrain.rundir.live_view import LiveView

_KEY_WIDTH = 12


def status(
    run: RunArgument, storage: StorageOption = DEFAULT_STORAGE, json: JsonOption = False
) -> None:
    """Show the state of a run, and the next step."""
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.run_view import view_run
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.rundir.live_reader import LiveReader, make_view

    paths = find_run(run, storage)
    view = view_run(paths)
    files = replace(LiveReader(paths).read(), status=view.status)
    now = time.time()
    live_view = make_view(files, paths, state=view.state, live=view.live, now=now)
    if json:
        damage = view.status.damage or live_view.problem or None
        print_json({**view.to_json(), **live_view.to_json(), "damage": damage})
    else:
        from hpctrain.cli.terminal import width_of_output

        print(render_view(view, live_view, width=width_of_output()))


def render_view(
    view: RunView, live_view: LiveView | None = None, *, width: int | None = None
) -> str:
    """Return the state of a run as text. Pure, except for the time of day.

    Parameters
    ----------
    view
        The run.
    live_view
        What it does now; None leaves that out.
    width
        Columns of the terminal; None for a program, which is given the lines as they are.
    """
    from hpctrain.cli.run_view import format_age
    from hpctrain.cli.terminal import wrap
    from hpctrain.host_list import compress_hosts
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_elapsed, one_line
    from hpctrain.rundir.live_text import condition_rows, describe_begin, live_rows

    status = view.status
    # Once there are reports, the ranks are in their training function.
    shows_phase = not view.reported_at or status.phase.startswith("stopping")
    why = status.phase.removeprefix("stopping: ")
    phase = f" ({why})" if view.live and status.phase and shows_phase else ""
    # A name may have any character.
    rows = [("path", one_line(str(view.path)))]
    if view.recorded_name:
        rows.append(
            ("recorded", f"as {view.recorded_name}: its directory has been copied or moved")
        )
    if view.state == "lost":
        rows.append(("executor", f"gone: {_executor(view)}"))
    elif view.live is None:
        rows.append(("executor", f"not known: {_executor(view)}"))
    elif status.launcher and view.state not in ("refused", "submitting"):
        rows.append(("executor", _executor(view)))
    if waits := _explain_wait(view):
        rows.append(("queue", waits))
    if status.attempt:
        nodes = f" on {compress_hosts(status.nodes)}" if status.nodes else ""
        ranks = f": {status.world_size} ranks{nodes}" if status.world_size else ""
        rows.append(("attempt", f"{status.attempt}{ranks}"))
    if view.reports:
        ago = f", {format_age(view.reported_at)} ago" if view.reported_at else ""
        rows.append(("reports", f"{view.reports}{ago}"))
    if live_view is not None:
        rows += live_rows(live_view)
    rows += condition_rows(status, view.metrics)
    if view.checkpoint is not None:
        rows.append(("checkpoint", str(view.checkpoint)))
    if begin := describe_begin(status):
        rows.append((begin, f"{format_age(status.started_at)} ago"))
    if view.live and status.deadline is not None:
        rows.append(("time left", format_elapsed(status.deadline - time.time())))
    if status.ended_at is not None:
        rows.append(("ended", f"{format_age(status.ended_at)} ago"))
    if status.error is not None:
        rows.append(("error", status.error))
    if status.damage:
        rows.append(("damaged", f"{status.damage}. This is what the ledger says."))
    elif live_view is not None and live_view.problem:
        rows.append(("damaged", live_view.problem))
    if view.next_step is not None:
        rows.append(("next", view.next_step))
    # Escaped first: an escaped character is longer, and is to fit, too.
    lines = wrap("", show_controls(f"{view.name}: {view.shown_state}{phase}"), width)
    for key, value in rows:
        lines += wrap(f"  {key:<{_KEY_WIDTH}}", show_controls(value), width)
    return "\n".join(lines)


def _explain_wait(view: RunView) -> str:
    if view.status.job_id is None or view.job_state is None:
        return ""
    from hpctrain.slurm.output import Job
    from hpctrain.slurm.waiting import explain_wait

    job = Job(job_id=view.status.job_id, state=view.job_state, reason=view.job_reason or "")
    return explain_wait(job, run=str(view.path))


def _executor(view: RunView) -> str:
    status = view.status
    if status.job_id is None and not status.owner_pid:
        return "not known"
    if status.job_id is None:
        return f"process {status.owner_pid} on {status.owner_host}"
    said = [word for word in (view.job_state, view.job_reason) if word]
    return f"job {status.job_id}" + (f" ({', '.join(said)})" if said else "")
