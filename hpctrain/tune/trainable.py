"""What a sweep tries: a function or a trainer, with the configuration of one trial."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.checks import construct_again, did_you_mean, shown
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.function_run import FunctionRun
from hpctrain.trainer import BaseTrainer, DataParallelTrainer

_RESOURCES = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}
# Dicts of a trainer that a configuration adds to.
_MERGED = ("train_loop_config", "params")


@dataclass(frozen=True, kw_only=True)
class WithResources:
    """A function with what each of its trials needs."""

    function: Callable[..., Any]
    scaling_config: ScalingConfig


Trainable = Callable[..., Any] | BaseTrainer | WithResources


def with_resources(trainable: Any, resources: Mapping[str, float] | ScalingConfig) -> WithResources:
    """Return a function whose trials have these resources. Not collective.

    Parameters
    ----------
    trainable
        The function. Trainers have a ScalingConfig.
    resources
        ``{"cpu": 2, "gpu": 1, "memory": 8 * 2**30}``, or a ScalingConfig.

    Raises
    ------
    ConfigError
        If it is a trainer, or a resource is unknown.

    Examples
    --------
    >>> with_resources(print, {"cpu": 2}).scaling_config
    ScalingConfig(resources_per_worker={'CPU': 2})
    """
    if isinstance(trainable, FunctionRun) or not callable(trainable):
        raise ConfigError(
            f"with_resources({shown(trainable)}): a function is needed. Give a trainer its "
            f"ScalingConfig."
        )
    if isinstance(resources, ScalingConfig):
        return WithResources(function=trainable, scaling_config=resources)
    if unknown := sorted(map(str, set(resources) - set(_RESOURCES))):
        meant = did_you_mean(unknown[0], _RESOURCES) or f"There are {', '.join(_RESOURCES)}."
        raise ConfigError(f"with_resources() has no resource {unknown[0]!r}. {meant}")
    scaling = ScalingConfig(
        use_gpu=bool(resources.get("gpu")),
        resources_per_worker={
            _RESOURCES[name]: amount for name, amount in resources.items() if amount
        },
    )
    return WithResources(function=trainable, scaling_config=scaling)


def with_parameters(trainable: Any, **parameters: Any) -> Callable[..., Any]:
    """Return a function that is given further arguments, such as data. Not collective.

    Raises
    ------
    ConfigError
        If it is no function.
    """
    if isinstance(trainable, (FunctionRun, WithResources)) or not callable(trainable):
        raise ConfigError(
            f"with_parameters({shown(trainable)}): a function is needed. A trainer has datasets=, "
            f"and with_resources() comes last."
        )
    return functools.partial(trainable, **parameters)


def check_trainable(trainable: object) -> None:
    """Refuse what cannot be tried. Not collective.

    Raises
    ------
    ConfigError
        If it is neither a function nor a trainer.
    """
    if isinstance(trainable, (BaseTrainer, WithResources)):
        return
    if isinstance(trainable, type) or not callable(trainable):
        raise ConfigError(
            f"Tuner({shown(trainable)}): a function of a config, or a trainer such as "
            f"TorchTrainer(...), is needed."
        )


def name_trainable(trainable: Trainable) -> str:
    """Return how a trainable is called in the name of a sweep. Not collective."""
    if isinstance(trainable, BaseTrainer):
        return type(trainable).__name__
    function: Any = trainable.function if isinstance(trainable, WithResources) else trainable
    while isinstance(function, functools.partial):
        function = function.func
    name = "".join(c for c in getattr(function, "__name__", "function") if c.isalnum() or c in "_-")
    return name.strip("_-")[:64] or "function"


def run_config_of(trainable: Trainable) -> RunConfig:
    """Return the RunConfig that a trainable brings along. Not collective."""
    return trainable.run_config if isinstance(trainable, BaseTrainer) else RunConfig()


def make_trial_trainer(
    trainable: Trainable, config: Mapping[str, Any], run_config: RunConfig
) -> BaseTrainer:
    """Return the trainer of one trial. Not collective.

    Raises
    ------
    ConfigError
        If the configuration has an argument that the trainer lacks, or a value that it refuses.
    """
    if isinstance(trainable, BaseTrainer):
        return _with_changes(trainable, config, run_config)
    return DataParallelTrainer(
        trainable.function if isinstance(trainable, WithResources) else trainable,
        train_loop_config=config,
        scaling_config=(
            trainable.scaling_config if isinstance(trainable, WithResources) else ScalingConfig()
        ),
        run_config=run_config,
    )


def _with_changes(
    trainer: BaseTrainer, config: Mapping[str, Any], run_config: RunConfig
) -> BaseTrainer:
    arguments = trainer._arguments
    names = [name for name in arguments.signature.parameters if name not in ("self", "run_config")]
    changes: dict[str, Any] = {"run_config": run_config}
    for name, value in config.items():
        if name not in names:
            inside = did_you_mean(name, names) or (
                "Parameters of the training function go inside: param_space="
                "{'train_loop_config': {" + repr(name) + ": ...}}."
            )
            raise ConfigError(
                f"param_space has the key {name!r}, which is no argument of "
                f"{type(trainer).__name__}. {inside}"
            )
        given = arguments.arguments.get(name)
        if name in _MERGED and isinstance(given, Mapping) and isinstance(value, Mapping):
            value = _merged(given, value)
        elif name == "scaling_config" and isinstance(value, Mapping):
            value = replace(trainer.scaling_config, **value)
        changes[name] = value
    return construct_again(trainer, **changes)


def _merged(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**given}
    for name, value in changes.items():
        before = merged.get(name)
        is_nested = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if is_nested else value  # type: ignore[arg-type]
    return merged
