"""Ray Train's arguments of ``BatchPredictor.predict()`` on workers, as a `ScalingConfig`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.predict.predictor import Predictor

_WORKERS = ("max_scoring_workers", "min_scoring_workers")
_RESOURCES = ("num_cpus_per_worker", "num_gpus_per_worker")
# Arguments of tasks that Ray schedules.
_WITHOUT_MEANING = ("ray_remote_args", "separate_gpu_stage")
NAMES = (*_WORKERS, *_RESOURCES, *_WITHOUT_MEANING)
"""The accepted arguments."""


def take_scaling(
    kwargs: dict[str, Any],
    scaling_config: ScalingConfig | None,
    predictor_cls: type[Predictor],
    predictor_kwargs: Mapping[str, Any],
) -> tuple[ScalingConfig | None, Mapping[str, Any]]:
    """Return the ScalingConfig and the predictor's arguments for Ray Train's arguments.

    Not collective. The arguments are removed from `kwargs`. The number of workers is the given
    maximum, else the given minimum. The predictor gets ``use_gpu=True`` if workers have GPUs and
    `predictor_kwargs` does not set it.

    Raises
    ------
    ConfigError
        If a ScalingConfig is given too, a value is impossible, or the predictor would not use the
        GPUs.
    """
    ignored = [name for name in _WITHOUT_MEANING if kwargs.pop(name, None) is not None]
    if ignored:
        log(f"predict({', '.join(ignored)}) has no effect: each rank reads the rows it scores.")
    given = {name: kwargs.pop(name) for name in (*_WORKERS, *_RESOURCES) if name in kwargs}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return scaling_config, predictor_kwargs
    if scaling_config is not None:
        raise ConfigError(
            f"predict() was given scaling_config and {', '.join(given)}. Give only the "
            f"ScalingConfig."
        )
    names = {"num_cpus_per_worker": "CPU", "num_gpus_per_worker": "GPU"}
    resources = {names[name]: given[name] for name in _RESOURCES if given.get(name)}
    if "GPU" in resources:
        predictor_kwargs = _with_gpu(predictor_cls, predictor_kwargs, resources["GPU"])
    scaling_config = ScalingConfig(
        num_workers=next((given[name] for name in _WORKERS if name in given), 1),
        use_gpu="GPU" in resources,
        resources_per_worker=resources,
    )
    return scaling_config, predictor_kwargs


def _with_gpu(cls: type[Predictor], kwargs: Mapping[str, Any], gpus: float) -> Mapping[str, Any]:
    """Return the arguments with ``use_gpu=True``; raise if the predictor would not use GPUs."""
    if "use_gpu" not in kwargs and "use_gpu" in inspect.signature(cls.from_checkpoint).parameters:
        return {**kwargs, "use_gpu": True}
    if kwargs.get("use_gpu"):
        return kwargs
    if "use_gpu" in kwargs:
        why = "it was given use_gpu=False"
    else:
        why = f"{cls.__name__}.from_checkpoint() has no argument use_gpu"
    raise ConfigError(
        f"predict(num_gpus_per_worker={gpus}): {cls.__name__} does not support GPU prediction: "
        f"{why}. Give BatchPredictor(..., use_gpu=True), or leave num_gpus_per_worker out."
    )
