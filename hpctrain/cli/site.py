"""``hpctrain site``: profiles of Slurm clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, StorageOption, naming_flags
from hpctrain.cli.slurm_options import AccountOption, QosOption, slurm_fields
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.slurm.site_facts import SiteFacts
    from hpctrain.slurm.site_profile import NodesSeen

_JOB_NODES = 2

site_app = typer.Typer(
    help="Write a profile of the Slurm cluster of this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@site_app.callback()
def _of_site() -> None:
    """Keep ``probe`` as a subcommand: Typer would drop the name of a single command."""


@site_app.command()
def probe(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The .toml file to write.", show_default="stdout"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    partition: Annotated[
        str,
        typer.Option(
            "--partition",
            "-p",
            help="The partition whose nodes are described.",
            show_default="the cluster's",
        ),
    ] = "",
    job: Annotated[
        bool, typer.Option("--job", help="Look at nodes too, in a short job of two of them.")
    ] = False,
    account: AccountOption = "",
    qos: QosOption = "",
    storage: StorageOption = DEFAULT_STORAGE,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds that this job may wait in the queue.")
    ] = 300.0,
) -> None:
    """Print a site profile of this cluster, with how certain each value is.

    --account, --qos, --storage and --patience are those of the job.
    """
    import time

    from hpctrain.cli.exit_codes import say
    from hpctrain.plan.site import parse_site
    from hpctrain.slurm.site_facts import query_site
    from hpctrain.slurm.site_profile import render_profile

    if output is not None:
        _check_output(output, force=force)
    if job:
        _check_home()
    elif account or qos:
        raise ConfigError("--account and --qos are those of the job. Add --job, or leave them out.")
    date = time.strftime("%Y-%m-%d")
    with naming_flags():
        facts = query_site(partition or None)
        text = render_profile(facts, None, date=date)
        # Nothing is written that SlurmConfig(site=...) would refuse.
        parse_site("probed", text, origin="of this cluster")
        if job:
            fields = slurm_fields(account=account, qos=qos)
            seen = _see_nodes(text, facts, fields, storage, patience_s=patience)
            text = render_profile(facts, seen, date=date)
            parse_site("probed", text, origin="of this cluster")
    if output is None:
        print(text, end="")
        say("save it: hpctrain site probe --output SITE.toml; then SlurmConfig(site='SITE.toml')")
        return
    _write(output, text, force=force)
    say(f"wrote {output.absolute()}")
    say(_describe_use(output.absolute()))


def _check_output(output: Path, *, force: bool) -> None:
    if output.suffix != ".toml":
        raise ConfigError(
            f"--output {output}: SlurmConfig(site=...) takes a file whose name ends with .toml. "
            f"Use {output.with_suffix('.toml') if output.name else 'SITE.toml'}."
        )
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no directory {output.parent}. Make it.")
    if output.is_dir() or (output.exists() and not force):
        raise ConfigError(
            f"{output} exists. Choose another file, or overwrite it with --force."
            if not output.is_dir()
            else f"{output} is a directory. Choose another file."
        )


def _check_home() -> None:
    """Refuse to submit a job where no run would become one."""
    from hpctrain import environ

    job_id, launcher = environ.variable("SLURM_JOB_ID"), environ.requested_launcher()
    if job_id:
        raise ConfigError(
            f"--job submits a job, but this is inside job {job_id}. Leave it first, or probe "
            f"without --job."
        )
    if launcher not in (None, "auto", "slurm"):
        raise ConfigError(
            f"--job submits a job, but HPCTRAIN_LAUNCHER={launcher}. Unset it, or probe without "
            f"--job."
        )


def _write(output: Path, text: str, *, force: bool) -> None:
    from hpctrain.rundir.files import write_atomic

    if force:
        write_atomic(output, text.encode())
        return
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"{output} exists. Choose another file, or overwrite it with --force."
        ) from error


def _describe_use(path: Path) -> str:
    import shlex

    return (
        f"use it: SlurmConfig(site={str(path)!r}), or --site {shlex.quote(str(path))}; "
        f"'hpctrain submit --dry-run' prints the job script that results"
    )


def _see_nodes(
    text: str,
    facts: SiteFacts,
    fields: dict[str, str],
    storage: Path,
    *,
    patience_s: float,
) -> NodesSeen:
    """Return what a job sees that is submitted with the profile itself."""
    from tempfile import NamedTemporaryFile

    from hpctrain import environ
    from hpctrain.cli.doctor import ended_by_signals, prepare_workers
    from hpctrain.cli.exit_codes import say
    from hpctrain.launch.site_job import see_nodes

    limit = facts.partition.fields.get("MaxTime", "UNLIMITED")
    if limit != "UNLIMITED":
        fields = {**fields, "time": limit}
    has_gpus = any(group.gpus(None) for group in facts.partition.groups)
    nodes = min(_JOB_NODES, facts.partition.num_nodes)
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".toml") as file:
        file.write(text)
        file.flush()
        environ.request_slurm_overrides(
            {**fields, "site": file.name, "nodes": nodes, "tasks_per_node": 1}
        )
        submission = prepare_workers(nodes, int(has_gpus), storage)
        with ended_by_signals():
            return see_nodes(submission, patience_s=patience_s, say=say)
