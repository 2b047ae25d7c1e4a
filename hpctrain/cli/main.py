"""`app`: the command ``hpctrain``."""

from __future__ import annotations

from typing import Annotated

import typer

import hpctrain
from hpctrain.cli.verbs import LazyVerbs

app = typer.Typer(
    cls=LazyVerbs,
    help="Train on many nodes with Slurm and MPI.",
    epilog="Exit codes: 0 fine, 2 usage or configuration, 3 could not start, 4 failed, 5 stopped "
    "and can be resumed, 6 taken over by another executor, 124 still running after --timeout, 130 "
    "Ctrl-C. An exception of the script itself is 1.",
    no_args_is_help=True,
    # hpctrain --install-completion
    add_completion=True,
    # Help and errors are plain text: importing rich takes longer than most verbs.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpctrain {hpctrain.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
