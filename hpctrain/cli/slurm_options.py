"""Options of Slurm's that several verbs share, and the resources of a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hpctrain.config import ScalingConfig

SlurmFields = Mapping[str, Any]
"""The fields of SlurmConfig that were given."""
Verb = Callable[..., None]

# Slurm's short options for Slurm's own options.
PartitionOption = Annotated[str, typer.Option("--partition", "-p", help="As sbatch's.")]
AccountOption = Annotated[str, typer.Option("--account", "-A", help="As sbatch's.")]
QosOption = Annotated[str, typer.Option("--qos", "-q", help="As sbatch's.")]
TimeOption = Annotated[str, typer.Option("--time", "-t", help="As sbatch's.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", "-N", min=1, help="As sbatch's.")]
TasksPerNodeOption = Annotated[
    int | None, typer.Option("--ntasks-per-node", min=1, help="As sbatch's: workers of a node.")
]
ConstraintOption = Annotated[str, typer.Option("--constraint", "-C", help="As sbatch's.")]

# By field of SlurmConfig: the type, and the value that is none.
_OPTIONS: Mapping[str, tuple[Any, str | None]] = {
    "partition": (PartitionOption, ""),
    "account": (AccountOption, ""),
    "qos": (QosOption, ""),
    "time": (TimeOption, ""),
    "nodes": (NodesOption, None),
    "tasks_per_node": (TasksPerNodeOption, None),
    "constraint": (ConstraintOption, ""),
}


def with_slurm_options(*, without: Collection[str] = ()) -> Callable[[Verb], Verb]:
    """Return a decorator that gives a verb options of sbatch in place of its parameter ``slurm``.

    Not collective. The verb gets the fields of SlurmConfig that were given as ``slurm``.

    Parameters
    ----------
    without
        Fields for which it has no option.
    """
    options = [
        inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=none, annotation=option)
        for field, (option, none) in _OPTIONS.items()
        if field not in without
    ]

    def decorate(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def with_fields(**given: Any) -> None:
            fields = {option.name: given.pop(option.name) for option in options}
            verb(**given, slurm=slurm_fields(**fields))

        written = inspect.signature(verb, eval_str=True)
        shown: list[inspect.Parameter] = []
        for parameter in written.parameters.values():
            shown += options if parameter.name == "slurm" else [parameter]
        # Typer reads both.
        with_fields.__signature__ = written.replace(parameters=shown)  # type: ignore[attr-defined]
        with_fields.__annotations__ = {option.name: option.annotation for option in shown}
        return with_fields

    return decorate


def slurm_fields(**given: str | int | None) -> dict[str, Any]:
    """Return the fields of SlurmConfig that were given. Pure; not collective."""
    return {name: value for name, value in given.items() if value}


def scaling_of(workers: int, *, cpus: int | None, gpus: int, slurm: SlurmFields) -> ScalingConfig:
    """Return what ``--workers``, ``--cpus``, ``--gpus`` and sbatch's options ask for.

    Pure; not collective.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """
    from hpctrain.config import ScalingConfig
    from hpctrain.slurm_config import SlurmConfig

    return ScalingConfig(
        num_workers=workers,
        use_gpu=gpus > 0,
        resources_per_worker={key: float(n) for key, n in (("CPU", cpus), ("GPU", gpus)) if n},
        slurm=SlurmConfig(**slurm),
    )
