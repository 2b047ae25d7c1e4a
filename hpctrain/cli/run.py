"""``hpctrain run``: run a script here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import ArgsArgument, ExistingOption, request_existing


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The script that calls fit().")],
    args: ArgsArgument = None,
    launcher: Annotated[
        str,
        typer.Option(
            help="Where the ranks start: auto, local, allocation, slurm, mpiexec, spmd or inline. "
            "Wins over the script's RunConfig(launcher=...).",
            show_default="what the script says, else auto",
        ),
    ] = "",
    hostfile: Annotated[
        Path | None,
        typer.Option(
            "--hostfile",
            "-f",
            help="Hosts for the ranks, one a line, as mpiexec takes them ('node1 slots=4', "
            "'node1:4'). Implies --launcher=mpiexec.",
            show_default="that of the PBS, LSF or Grid Engine job",
        ),
    ] = None,
    existing: ExistingOption = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--dryrun", help="Print what fit() would do, and start nothing."),
    ] = False,
) -> None:
    """Run SCRIPT here, as `python SCRIPT ARGS` does."""
    from hpctrain import environ
    from hpctrain.cli.script import run_script

    if hostfile is not None:
        from hpctrain.plan.hosts import read_hostfile

        read_hostfile(hostfile)
        environ.request_hostfile(hostfile)
        launcher = launcher or "mpiexec"
    if launcher:
        from hpctrain.config import LAUNCHERS
        from hpctrain.errors import ConfigError

        if launcher not in LAUNCHERS:
            raise ConfigError(f"--launcher={launcher}: one of {', '.join(LAUNCHERS)} is needed.")
        environ.request_launcher(launcher)
    request_existing(existing)
    if dry_run:
        environ.request_dry_run()
    run_script(script, args or [])
