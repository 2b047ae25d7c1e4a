"""What a sweep tries: a function or a trainer, with the configuration of one trial."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hpctrain.checks import construct_again, did_you_mean, shown
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.function_run import FunctionRun
from hpctrain.log import log
from hpctrain.printable import describe_error
from hpctrain.train_function import kind_not_run_by_a_call, needed_by_name
from hpctrain.trainer import BaseTrainer, DataParallelTrainer
from hpctrain.tune.trial_function import TrialFunction
from hpctrain.tune.variants import copy_containers, show_path
from hpctrain.unresolved import DEEPEST, find_too_deep

_RESOURCES = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}
# Dicts of a trainer that a configuration adds to.
_MERGED = ("train_loop_config", "params")


@dataclass(frozen=True, kw_only=True)
class WithResources:
    """A function with what each of its trials needs."""

    function: Callable[..., Any]
    scaling_config: ScalingConfig | Callable[[Mapping[str, Any]], ScalingConfig]
    """Or what returns it for the configuration of a trial."""


Trainable = Callable[..., Any] | BaseTrainer | WithResources


Resources = Mapping[str, float] | ScalingConfig


def with_resources(
    trainable: Any, resources: Resources | Callable[[dict[str, Any]], Resources]
) -> WithResources:
    """Return a function whose trials have these resources. Not collective.

    Parameters
    ----------
    trainable
        The function. Trainers have a ScalingConfig.
    resources
        ``{"cpu": 2, "gpu": 1, "memory": 8 * 2**30}``, or a ScalingConfig, or a function that
        returns one of them for the configuration of a trial.

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
    if callable(resources) and not isinstance(resources, type):
        return WithResources(
            function=trainable, scaling_config=functools.partial(_ask_resources, resources)
        )
    return WithResources(function=trainable, scaling_config=_scaling_of(resources))


def _ask_resources(function: Callable[..., Any], config: Mapping[str, Any]) -> ScalingConfig:
    try:
        resources = function(copy_containers(dict(config)))
    # Whatever a user's function does.
    except Exception as error:
        raise ConfigError(
            f"the function of with_resources() failed: {describe_error(error)}. It is "
            f"given the config of a trial: lambda config: {{'cpu': config['threads']}}."
        ) from error
    return _scaling_of(resources)


def _scaling_of(resources: Any) -> ScalingConfig:
    if isinstance(resources, ScalingConfig):
        return resources
    if not isinstance(resources, Mapping):
        raise ConfigError(
            f"with_resources() has the resources {shown(resources)}. A dict is needed, such as "
            f"{{'cpu': 2, 'gpu': 1}}, or a ScalingConfig, or a function that returns one of them."
        )
    if unknown := sorted(map(str, set(resources) - set(_RESOURCES))):
        meant = (
            did_you_mean(unknown[0].lower(), _RESOURCES) or f"There are {', '.join(_RESOURCES)}."
        )
        raise ConfigError(f"with_resources() has no resource {unknown[0]!r}. {meant}")
    return ScalingConfig(
        use_gpu=bool(resources.get("gpu")),
        resources_per_worker={
            _RESOURCES[name]: amount for name, amount in resources.items() if amount
        },
    )


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
    if isinstance(trainable, BaseTrainer):
        return
    if isinstance(trainable, WithResources):
        trainable = trainable.function
    if isinstance(trainable, type) or not callable(trainable):
        raise ConfigError(
            f"Tuner({shown(trainable)}): a function of a config, or a trainer such as "
            f"TorchTrainer(...), is needed."
        )
    _check_arguments(trainable)
    if kind := kind_not_run_by_a_call(trainable):
        raise ConfigError(
            f"Tuner({shown(trainable)}): it is {kind}, of which a call runs nothing. A function is "
            f"needed that calls hpctrain.report()."
        )


def _check_arguments(function: Callable[..., Any]) -> None:
    """Refuse a function that needs more than a configuration."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # It is refused, with the reason, where a trial is made of it.
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    if len(needed) > 1:
        name, more = getattr(function, "__name__", repr(function)), needed[1]
        raise ConfigError(
            f"{name}({', '.join(needed)}) takes {len(needed)} arguments. A trial calls it with "
            f"its configuration; give it the others before: tune.with_parameters({name}, "
            f"{more}=...)."
        )
    if named := needed_by_name(function):
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"{name}(*, {', '.join(named)}): a trial calls it with its configuration alone. Give "
            f"it the others before: tune.with_parameters({name}, {named[0]}=...)."
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


def warn_of_lost_settings(trainable: Trainable, run_config: RunConfig) -> None:
    """Log what the RunConfig of a trainer sets, and the one in its place does not. Not collective.

    Parameters
    ----------
    run_config
        That of the `Tuner`.
    """
    of_trainer, default = run_config_of(trainable), RunConfig()
    names = [field.name for field in fields(RunConfig)]
    kept = {name for name in names if getattr(run_config, name) != getattr(default, name)}
    lost = [n for n in names if n not in kept and getattr(of_trainer, n) != getattr(default, n)]
    if lost:
        log(
            f"warning: Tuner(run_config=...) replaces the trainer's RunConfig as a whole. Of that "
            f"it lacks {', '.join(lost)}: give it those, too."
        )


def make_trial_trainer(
    trainable: Trainable, config: Mapping[str, Any], run_config: RunConfig
) -> BaseTrainer:
    """Return the trainer of one trial. Not collective.

    Raises
    ------
    ConfigError
        If the configuration has an argument that the trainer lacks, or a value that it refuses, or
        holds itself.
    """
    _check_depth(config)
    if isinstance(trainable, BaseTrainer):
        return _with_changes(trainable, config, run_config)
    return DataParallelTrainer(
        TrialFunction(trainable.function if isinstance(trainable, WithResources) else trainable),
        train_loop_config=config,
        scaling_config=_scaling_for(trainable, config),
        run_config=run_config,
    )


def _check_depth(config: Mapping[str, Any]) -> None:
    if (path := find_too_deep(config)) is not None:
        raise ConfigError(
            f"the configuration holds itself, or is more than {DEEPEST} levels deep, at "
            f"{show_path(path[:4])}/... Flatten it, or make such a value in the function."
        )


def _scaling_for(trainable: object, config: Mapping[str, Any]) -> ScalingConfig:
    if not isinstance(trainable, WithResources):
        return ScalingConfig()
    scaling = trainable.scaling_config
    return scaling if isinstance(scaling, ScalingConfig) else scaling(config)


def _with_changes(
    trainer: BaseTrainer, config: Mapping[str, Any], run_config: RunConfig
) -> BaseTrainer:
    arguments = trainer._arguments
    names = [name for name in arguments.signature.parameters if name not in ("self", "run_config")]
    changes: dict[str, Any] = {"run_config": run_config}
    for name, value in config.items():
        if name == "run_config":
            raise ConfigError(
                "param_space has the key 'run_config', and all trials have that of the sweep. Give "
                "it there: Tuner(trainer, param_space=..., run_config=...)."
            )
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
