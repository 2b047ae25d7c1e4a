"""``hpctrain replay``: the same run again, from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import (
    DEFAULT_STORAGE,
    JsonOption,
    RunArgument,
    StorageOption,
    naming_flags,
)
from hpctrain.cli.slurm_options import SlurmFields, with_slurm_options

if TYPE_CHECKING:
    from hpctrain.errors import HpctrainError
    from hpctrain.launch.replay import Replay
    from hpctrain.launch.request import Submission
    from hpctrain.launch.run_diff import Difference

_KEY_WIDTH = 11


@with_slurm_options(without=("constraint",))
def replay(
    run: RunArgument,
    *,
    name: Annotated[
        str, typer.Option(help="Name of the new run.", show_default="NAME-replay-1, -2, ...")
    ] = "",
    storage: StorageOption = DEFAULT_STORAGE,
    storage_path: Annotated[
        str,
        typer.Option(help="Directory of the new run.", show_default="that of the old run"),
    ] = "",
    launcher: Annotated[
        str,
        typer.Option(
            help="Where the ranks start: local, allocation, slurm or mpiexec.",
            show_default="where those of the old run did",
        ),
    ] = "",
    slurm: SlurmFields,
    keep_environment: Annotated[
        bool,
        typer.Option(
            "--keep-environment",
            help="Leave all variables as they are set here, and say which differ.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", "--dryrun", help="Print what differs and what would run; start nothing."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run a run again from its record: its code, configuration, variables, seed and resources.

    It has a directory of its own, and starts from no checkpoint of the old run. A job is submitted,
    and its id printed; other runs run here. Says before what is the same and what is not.
    """
    from contextlib import ExitStack

    from hpctrain import environ
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.cli.terminal import width_of_output
    from hpctrain.launch.fit import refuse_nested_fit
    from hpctrain.launch.replay import prepared_replay

    refuse_nested_fit("replay")
    origin = find_run(run, storage)
    if launcher:
        environ.request_launcher(launcher)
    if dry_run:
        environ.request_dry_run()
    with ExitStack() as held:
        with naming_flags(without=("num_workers", "site")):
            new = held.enter_context(
                prepared_replay(
                    origin,
                    name=name or None,
                    storage_path=storage_path or None,
                    slurm=slurm,
                    repeats_environment=not keep_environment,
                )
            )
        failed = None
        if not dry_run:
            failed = _begin(new, json=json)
        elif not json:
            print(render(new, width=width_of_output()))
            _print_plan(new.submission)
    if json:
        print_json(to_json(new, began=not dry_run, failed=failed))
    if failed is not None:
        raise failed


def _begin(new: Replay, *, json: bool) -> HpctrainError | None:
    """Run it; return why it failed, if it did."""
    import sys
    from contextlib import nullcontext

    from hpctrain.cli.json_output import stdout_on_stderr
    from hpctrain.cli.terminal import width_of_output
    from hpctrain.errors import HpctrainError

    # For the person at the terminal: stdout is the id of the job.
    print(render(new, width=width_of_output()), file=sys.stderr, flush=True)
    with stdout_on_stderr() if json else nullcontext():
        try:
            _launch(new.submission)
        except HpctrainError as error:
            return error
    return None


def _print_plan(submission: Submission) -> None:
    from hpctrain.launch.dry_run import print_plan

    print()
    print_plan(submission)


def _launch(submission: Submission) -> None:
    from hpctrain import environ
    from hpctrain.cli.exit_codes import say
    from hpctrain.launch.fit import fit_prepared, submit_prepared

    if submission.plan.launcher != "slurm":
        state = fit_prepared(submission).state
        if not submission.request.run_config.verbose:
            # The run itself shows nothing.
            say(f"{submission.request.paths.root.name} is {state}.")
        return
    # It prints the id of the job.
    environ.request_detach()
    submit_prepared(submission)


def render(new: Replay, *, width: int | None) -> str:
    """Return what is the same in a replay, and what is not, as text. Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.options import name_flags
    from hpctrain.cli.terminal import wrap
    from hpctrain.printable import show_controls

    submission, changes = new.submission, new.changes
    assert submission.replay_of is not None
    lines = [
        *_line("replays", str(submission.replay_of.path)),
        *_line("resumes" if new.resumes else "begins", str(submission.request.paths.root)),
    ]
    rows = [("same", ", ".join(changes.same))]
    if changes.kept:
        rows.append(("", f"modules, as they were: {', '.join(changes.kept)}"))
    if changes.edited:
        rows.append(("", f"of these edited since: {', '.join(changes.edited)}"))
    for number, found in enumerate(changes.variables):
        rows.append(("" if number else "sets", _explain_variable(found)))
    for number, found in enumerate(changes.differences):
        text = f"{found.field}: {found.first} -> {found.second}"
        rows.append(("" if number else "differs", text))
    if not changes.differences:
        rows.append(("differs", "nothing that is recorded"))
    *others, last = changes.unknown
    rows.append(("unknown", f"{', '.join(others)}, and {last}"))
    rows += [("warning", name_flags(text)) for text in changes.warnings]
    for key, text in rows:
        lines += wrap(f"{key:<{_KEY_WIDTH}}", text, width)
    return show_controls("\n".join(lines))


def _explain_variable(found: Difference) -> str:
    name = found.field.removeprefix("variable ")
    value = "not set" if found.first == "-" else found.first
    before = "was not set" if found.second == "-" else f"was {found.second}"
    return f"{name}: {value}; here it {before}"


def _line(key: str, text: str) -> list[str]:
    """Return a line with a path, which stays in one piece."""
    return [f"{key:<{_KEY_WIDTH}}{text}"]


def to_json(new: Replay, *, began: bool, failed: Exception | None = None) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    from hpctrain.rundir.status import read_status

    submission, changes = new.submission, new.changes
    assert submission.replay_of is not None
    paths = submission.request.paths
    status = read_status(paths) if began else None
    return {
        "name": paths.root.name,
        "path": str(paths.root),
        "replay_of": str(submission.replay_of.path),
        "launcher": submission.plan.launcher,
        "began": began,
        "job_id": None if status is None else status.job_id,
        "state": None if status is None else status.state.value,
        "error": None if failed is None else str(failed),
        "same": list(changes.same),
        "kept": list(changes.kept),
        "edited": list(changes.edited),
        "variables": [
            {
                "field": found.field.removeprefix("variable "),
                "first": found.first,
                "second": found.second,
            }
            for found in changes.variables
        ],
        "seed": submission.spec.settings.seed,
        "differences": [
            {"field": found.field, "first": found.first, "second": found.second}
            for found in changes.differences
        ],
        "warnings": list(changes.warnings),
    }
