"""`app`: all verbs of ``hpctrain`` together."""

from __future__ import annotations

from typing import Annotated

import typer

import hpctrain
from hpctrain.cli.attach import attach
from hpctrain.cli.cancel import cancel
from hpctrain.cli.chaos import chaos
from hpctrain.cli.checkpoints import checkpoints_app
from hpctrain.cli.cluster import cluster_app
from hpctrain.cli.diff import diff
from hpctrain.cli.doctor import doctor
from hpctrain.cli.exit_codes import Verbs
from hpctrain.cli.history import history
from hpctrain.cli.install import install_app
from hpctrain.cli.list_runs import list_runs
from hpctrain.cli.logs import logs
from hpctrain.cli.pack import pack
from hpctrain.cli.predict import predict
from hpctrain.cli.profile import profile
from hpctrain.cli.replay import replay
from hpctrain.cli.report import report
from hpctrain.cli.run import run
from hpctrain.cli.serve import serve
from hpctrain.cli.site import site_app
from hpctrain.cli.status import status
from hpctrain.cli.submit import submit
from hpctrain.cli.sync import sync
from hpctrain.cli.template import template
from hpctrain.cli.top import top
from hpctrain.cli.tune import tune_app
from hpctrain.cli.wait import wait
from hpctrain.cli.why import why

app = typer.Typer(
    cls=Verbs,
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

# Arguments after SCRIPT, and after the command of `cluster exec`, are not parsed here.
_rest_is_verbatim = {"allow_interspersed_args": False}

app.command(context_settings=_rest_is_verbatim)(run)
app.command(context_settings=_rest_is_verbatim)(submit)
app.command(context_settings=_rest_is_verbatim)(doctor)
app.command()(status)
app.command()(why)
app.command("list")(list_runs)
app.command()(top)
app.command()(history)
app.command()(diff)
app.command()(replay)
app.command()(report)
app.command()(logs)
app.command()(attach)
app.command()(profile)
app.command()(wait)
app.command()(cancel)
app.command()(sync)
app.command()(pack)
app.command()(template)
app.command()(predict)
app.command()(serve)
app.command(context_settings=_rest_is_verbatim)(chaos)
app.add_typer(checkpoints_app, name="checkpoints")
app.add_typer(cluster_app, name="cluster")
app.add_typer(install_app, name="install")
app.add_typer(site_app, name="site")
app.add_typer(tune_app, name="tune")


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
