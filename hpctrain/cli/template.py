"""``hpctrain template``: batch scripts as a starting point."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import naming_flags
from hpctrain.cli.slurm_options import SlurmFields, scaling_of, slurm_fields, with_slurm_options


@with_slurm_options()
def template(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of --list.")] = "",
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The training script.")
    ] = "train.py",
    list_: Annotated[
        bool, typer.Option("--list", "-l", help="List the templates and the site profiles.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Workers: MPI ranks.")] = 2,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="CPUs of a worker.", show_default="as the site says")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a worker.")] = 0,
    site: Annotated[str, typer.Option(help="A site profile of --list, or a .toml file.")] = "",
    slurm: SlurmFields,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, which must not exist.")
    ] = None,
) -> None:
    """Print a batch script for SCRIPT, or list the templates."""
    from hpctrain.errors import ConfigError
    from hpctrain.plan.template import render_template

    if list_ or not name:
        print(_list_all())
        return
    fields = {**slurm, **slurm_fields(site=site)}
    with naming_flags():
        scaling = scaling_of(workers, cpus=cpus, gpus=gpus, slurm=fields)
        text = render_template(name, script=script, scaling=scaling)
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{output} exists. Choose another file, or remove it.") from error


def _list_all() -> str:
    from hpctrain.plan.site import load_site, site_names
    from hpctrain.plan.template import describe_template, template_names

    templates = [(name, describe_template(name)) for name in template_names()]
    sites = [(name, load_site(name).description) for name in site_names()]
    width = max(len(name) for name, _ in (*templates, *sites))
    rows = [
        "templates (hpctrain template NAME SCRIPT):",
        *(f"  {name:<{width}}  {text}" for name, text in templates),
        "site profiles (--site, SlurmConfig(site=...)):",
        *(f"  {name:<{width}}  {text}" for name, text in sites),
    ]
    return "\n".join(row.rstrip() for row in rows)
