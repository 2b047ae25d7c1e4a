"""``hpctrain serve``: a checkpoint behind HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import (
    DEFAULT_STORAGE,
    DetachOption,
    DryRunOption,
    StorageOption,
    request_launch,
)
from hpctrain.cli.predict import (
    CheckpointHelp,
    ModelOption,
    PredictorOption,
    TrustOption,
    predictor_arguments,
    run_name,
)
from hpctrain.cli.slurm_options import SlurmFields, scaling_of, with_slurm_options


@with_slurm_options(without=("nodes", "tasks_per_node"))
def serve(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help=CheckpointHelp)],
    *,
    predictor: PredictorOption = "",
    model: ModelOption = "",
    trust_preprocessor: TrustOption = False,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on.",
            show_default="127.0.0.1, which only this machine reaches; for a job, the node's",
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that requests must send.", show_default="a new one"),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Require no token; only on a loopback address.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --no-token: do not ask for confirmation.")
    ] = False,
    launcher: Annotated[
        str,
        typer.Option(
            help="Serve in a run: allocation, or slurm for a job.", show_default="this process"
        ),
    ] = "",
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of the run.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs to predict with.")] = 0,
    name: Annotated[
        str, typer.Option(help="Name of the run.", show_default="made of the checkpoint's")
    ] = "",
    storage: StorageOption = DEFAULT_STORAGE,
    slurm: SlurmFields,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Serve the model of CHECKPOINT over HTTP until it is stopped."""
    from hpctrain.cli.exit_codes import say
    from hpctrain.predict.registry import find_checkpoint, find_predictor
    from hpctrain.serve.server import LOOPBACK, Service, Serving, new_token
    from hpctrain.serve.server import serve as serve_here

    if no_token and not yes:
        _ask_whether_without_token()
    found = find_checkpoint(checkpoint)
    predictor_cls = find_predictor(found, predictor)
    predictor_cls.check_checkpoint(found)
    token = None if no_token else _read_token(token_file) if token_file else new_token()
    service = Service(
        checkpoint=found.path,
        predictor_cls=predictor_cls,
        predictor_kwargs=predictor_arguments(
            model, use_gpu=gpus > 0, trust_preprocessor=trust_preprocessor
        ),
        token=token,
        host=host or (None if launcher else LOOPBACK),
        port=port,
    )
    if token is not None and token_file is None:
        say(f"token: {token}")
    if not launcher:
        serve_here(service, on_url=lambda url: say(f"serving on {url} (try {url}/docs)"))
        return
    from hpctrain.config import RunConfig

    request_launch(dry_run=dry_run, detach=detach)
    Serving(
        service,
        scaling_config=scaling_of(1, cpus=cpus, gpus=gpus, slurm=slurm),
        run_config=RunConfig(
            name=name or run_name("serve", found.path),
            storage_path=storage,
            launcher=launcher,  # type: ignore[arg-type]  # checked by RunConfig
        ),
    ).fit()


def _ask_whether_without_token() -> None:
    from hpctrain.errors import ConfigError

    risk = (
        "--no-token: every user of this machine, as of a login node, reaches its loopback address, "
        "and can predict with this model, in your name"
    )
    if not sys.stdin.isatty():
        raise ConfigError(f"{risk}. Leave it out, or pass --yes.")
    if not typer.confirm(f"{risk}. Serve anyway?", err=True):
        raise typer.Abort


def _read_token(path: Path) -> str:
    from hpctrain.errors import ConfigError

    try:
        token = path.read_text(encoding="utf-8").strip()
        others = path.stat().st_mode & 0o077
    except OSError as error:
        raise ConfigError(f"--token-file={path}: {error.strerror}.") from error
    if others:
        raise ConfigError(f"--token-file={path} can be read by others: chmod 600 {path}")
    if len(token) < 16:
        raise ConfigError(f"--token-file={path}: 16 characters or more are needed.")
    return token
