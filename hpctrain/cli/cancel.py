"""``hpctrain cancel``: stop a run so that it can be resumed, or end it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.cli.options import (
    DEFAULT_STORAGE,
    DryRunOption,
    NowOption,
    RunArgument,
    StorageOption,
)

if TYPE_CHECKING:
    from hpctrain.cli.run_view import RunView
    from hpctrain.rundir.paths import RunPaths


def cancel(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    now: NowOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Stop a run at its next report.

    The same command resumes it. A pending job is cancelled.
    """
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.run_view import view_run
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.launch.cancel import cancel_run
    from hpctrain.printable import show_controls

    paths = find_run(run, storage)
    view = view_run(paths)
    if view.is_over:
        say(f"{view.name} is {view.state}; there is nothing to cancel.")
        if not view.status.is_of(paths.root):
            say(f"Its original is {view.status.path}, and was not changed.")
        return
    if dry_run:
        print(show_controls(f"would {_describe_act(paths, view, now=now)}"))
    else:
        say(cancel_run(paths, now=now))


def _describe_act(paths: RunPaths, view: RunView, *, now: bool) -> str:
    from hpctrain.launch.cancel import refuse_unknown_process
    from hpctrain.slurm.job import cancel_argv

    status = view.status
    if status.job_id is not None and status.launcher == "slurm":
        is_pending = view.job_state == "PENDING"
        if is_pending or now:
            return f"run: {' '.join(cancel_argv(status.job_id, only_pending=is_pending))}"
    elif now:
        refuse_unknown_process(paths, status)
        return f"send SIGTERM to process {status.owner_pid} on {status.owner_host}"
    return f"ask {view.name} to stop: {paths.stop_request}"
