"""``hpctrain template``: batch scripts to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def template(
    name: Annotated[str, typer.Argument(help="Name of a template.", show_default=False)] = "",
    list_: Annotated[bool, typer.Option("--list", "-l", help="List the templates.")] = False,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A value of the template; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, which must not exist."),
    ] = None,
) -> None:
    """Print a batch script made from a template."""
    from hpctrain.errors import ConfigError
    from hpctrain.plan.template import render_template, template_names

    if list_ or not name:
        print("\n".join(template_names()))
        return
    if name not in template_names():
        raise ConfigError(f"there is no template {name!r}. One of {', '.join(template_names())}.")
    given = {}
    for item in values or []:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"--set {item}: KEY=VALUE is needed.")
        given[key] = value
    text = render_template(name, **given)
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{output} exists. Choose another file, or remove it.") from error
