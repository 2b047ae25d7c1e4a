"""``hpctrain submit``: run a script whose run becomes a Slurm job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import (
    AccountOption,
    ConstraintOption,
    ExistingOption,
    NodesOption,
    PartitionOption,
    QosOption,
    TimeOption,
    request_existing,
    slurm_fields,
)


def submit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The script that calls fit().")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Its own arguments, all that follow.")
    ] = None,
    partition: PartitionOption = "",
    account: AccountOption = "",
    qos: QosOption = "",
    time: TimeOption = "",
    nodes: NodesOption = None,
    constraint: ConstraintOption = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-W", help="Follow the run, and end as it ends.")
    ] = False,
    existing: ExistingOption = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--dryrun", help="Print the batch script, and submit nothing."),
    ] = False,
) -> None:
    """Run SCRIPT up to its fit() and submit that to Slurm.

    Prints the id of the job.
    Options win over the script's SlurmConfig. The script ends where its job is submitted; what it
    prints until then goes to stderr.
    """
    from contextlib import nullcontext, redirect_stdout
    from sys import stderr

    from hpctrain import environ
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.script import run_script

    environ.request_slurm_overrides(
        slurm_fields(
            partition=partition,
            account=account,
            qos=qos,
            time=time,
            nodes=nodes,
            constraint=constraint,
        )
    )
    environ.request_launcher("slurm")
    request_existing(existing)
    if dry_run:
        environ.request_dry_run()
    elif not wait:
        environ.request_detach()
    with redirect_stdout(stderr) if not (wait or dry_run) else nullcontext():
        run_script(script, args or [])
    if dry_run or not wait:
        say(f"{script} has ended, and nothing was submitted.")
