"""``hpctrain submit``: run a script whose run becomes a Slurm job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import ArgsArgument, ExistingOption, request_existing, request_launch
from hpctrain.cli.slurm_options import SlurmFields, slurm_fields, with_slurm_options
from hpctrain.errors import ConfigError


@with_slurm_options()
def submit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The script that calls fit().")],
    *,
    args: ArgsArgument = None,
    slurm: SlurmFields,
    whole_script: Annotated[
        bool,
        typer.Option(
            "--script",
            help="SCRIPT itself is the job: each of its fit() runs there, one after another. "
            "Nothing of it runs here, so --workers says how large the job is.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --script: workers of its largest fit().")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="With --script: CPUs of a worker.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="With --script: GPUs of a worker.")] = 0,
    site: Annotated[str, typer.Option(help="A site profile, or a .toml file.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-W", help="Follow the run, and return its exit code.")
    ] = False,
    existing: ExistingOption = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--dryrun", help="Print the batch script, and submit nothing."),
    ] = False,
) -> None:
    """Run SCRIPT up to its fit() and submit that to Slurm.

    Prints the id of the job. Options override the script's SlurmConfig. The script ends where it
    would wait for its run; its output until then goes to stderr. If it would have begun more runs
    later, they are named and the exit code is 2.
    """
    fields = {**slurm, **slurm_fields(site=site)}
    if whole_script:
        from hpctrain.cli.script_job import submit_script

        raise SystemExit(
            submit_script(
                script,
                args or [],
                workers=workers,
                cpus=cpus,
                gpus=gpus,
                slurm=fields,
                wait=wait,
                dry_run=dry_run,
            )
        )
    if workers is not None or cpus is not None or gpus:
        raise ConfigError(
            "--workers, --cpus and --gpus are for --script. Without it the script's ScalingConfig "
            "says what each run needs."
        )
    request_existing(existing)
    _submit_runs(script, args or [], slurm=fields, wait=wait, dry_run=dry_run)


def _submit_runs(
    script: Path, args: Sequence[str], *, slurm: SlurmFields, wait: bool, dry_run: bool
) -> None:
    """Run a script up to its fit(), and submit that."""
    from contextlib import nullcontext, redirect_stdout
    from sys import stderr

    from hpctrain import environ
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.script import run_script
    from hpctrain.launch.detach import printed

    environ.request_slurm_overrides(slurm)
    environ.request_launcher("slurm")
    request_launch(dry_run=dry_run, detach=not wait)
    with redirect_stdout(stderr) if not (wait or dry_run) else nullcontext():
        run_script(script, args)
    if dry_run or not (wait or printed):
        say(f"{script} has ended, and nothing was submitted.")
