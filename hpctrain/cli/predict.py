"""``hpctrain predict``: score files with the model of a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hpctrain.cli.options import (
    DEFAULT_STORAGE,
    DetachOption,
    DryRunOption,
    StorageOption,
    request_launch,
)
from hpctrain.cli.slurm_options import SlurmFields, scaling_of, with_slurm_options

CheckpointHelp = "Directory of a checkpoint, or of a run, whose newest checkpoint is used."
PredictorOption = Annotated[
    str,
    typer.Option(
        metavar="MODULE:CLASS",
        help="Class that loads the checkpoint.",
        show_default="by the framework in its features.json",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        metavar="MODULE:NAME",
        help="For torch: the model, or a function that makes it; for Lightning its class; for jax "
        "the function of parameters and a batch. A checkpoint holds no code.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-preprocessor",
        help="Unpickle functions and objects in the checkpoint's preprocessor, which runs code.",
    ),
]


@with_slurm_options(without=("tasks_per_node",))
def predict(
    *,
    checkpoint: Annotated[Path, typer.Option(help=CheckpointHelp)],
    input_: Annotated[
        list[Path],
        typer.Option("--input", "-i", help="Files, directories or patterns; repeat it for more."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Output path: ends with .h5, .parquet, .csv or .npy."),
    ],
    features: Annotated[
        list[str] | None,
        typer.Option(help="A column for the model; repeat it.", show_default="as trained"),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to copy to the output; repeat it.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows for the model at a time.")] = 4096,
    predictor: PredictorOption = "",
    model: ModelOption = "",
    trust_preprocessor: TrustOption = False,
    workers: Annotated[int, typer.Option(min=0, help="Ranks; 0 is this process.")] = 1,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of a rank.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a rank.")] = 0,
    max_failures: Annotated[int, typer.Option(min=-1, help="Restarts after a failed rank.")] = 0,
    name: Annotated[
        str, typer.Option(help="Name of the run.", show_default="made of the output's")
    ] = "",
    storage: StorageOption = DEFAULT_STORAGE,
    launcher: Annotated[
        str, typer.Option(help="Where the ranks start: auto, local, allocation or slurm.")
    ] = "auto",
    slurm: SlurmFields,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Score files on all ranks.

    After a failure the same command continues where it stopped.
    """
    from hpctrain.config import FailureConfig, RunConfig
    from hpctrain.predict.batch_predictor import BatchPredictor
    from hpctrain.predict.input import open_dataset
    from hpctrain.predict.registry import find_checkpoint, find_predictor

    request_launch(dry_run=dry_run, detach=detach)
    found = find_checkpoint(checkpoint)
    predictor_cls = find_predictor(found, predictor)
    BatchPredictor.from_checkpoint(
        found,
        predictor_cls,
        **predictor_arguments(model, use_gpu=gpus > 0, trust_preprocessor=trust_preprocessor),
    ).predict(
        open_dataset(input_),
        feature_columns=features or None,
        keep_columns=keep,
        batch_size=batch_size,
        output=output,
        scaling_config=scaling_of(workers, cpus=cpus, gpus=gpus, slurm=slurm),
        run_config=RunConfig(
            name=name or run_name("predict", output),
            storage_path=storage,
            failure_config=FailureConfig(max_failures=max_failures),
            launcher=launcher,  # type: ignore[arg-type]  # checked by RunConfig
        ),
    )


def predictor_arguments(model: str, **flags: bool) -> dict[str, Any]:
    """Return the arguments of ``from_checkpoint()`` from the options. Not collective.

    Raises
    ------
    ConfigError
        If the model cannot be imported.
    """
    from hpctrain.predict.registry import import_name

    arguments: dict[str, Any] = {"model": import_name(model)} if model else {}
    # A user's own class need not accept options that are not used.
    return {**arguments, **{name: True for name, wanted in flags.items() if wanted}}


def run_name(verb: str, path: Path) -> str:
    """Return a name for a run: the same for the same command. Not collective.

    Examples
    --------
    >>> run_name("predict", Path("/data/my scores.h5"))
    'predict-my_scores.h5'
    """
    return f"{verb}-{re.sub(r'[^A-Za-z0-9._+-]', '_', path.name)}"[:128]
