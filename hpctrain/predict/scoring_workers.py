"""Ray Train's arguments of ``BatchPredictor.predict()`` on workers, as a `ScalingConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.log import log

_WORKERS = ("max_scoring_workers", "min_scoring_workers")
_RESOURCES = ("num_cpus_per_worker", "num_gpus_per_worker")
# Of tasks that Ray places by itself.
_WITHOUT_MEANING = ("allow_gpu", "ray_remote_args", "separate_gpu_stage")
NAMES = (*_WORKERS, *_RESOURCES, *_WITHOUT_MEANING)
"""The arguments that are taken."""


def take_scaling(
    kwargs: dict[str, Any],
    scaling_config: ScalingConfig | None,
    predictor_kwargs: Mapping[str, Any],
) -> ScalingConfig | None:
    """Return the ScalingConfig that Ray Train's arguments mean, which are taken out of `kwargs`.

    Not collective. The most workers that were allowed is how many there are, else the fewest.

    Raises
    ------
    ConfigError
        If a ScalingConfig was given too, a value is impossible, or there would be GPUs that the
        predictor does not use.
    """
    ignored = [name for name in _WITHOUT_MEANING if kwargs.pop(name, None) is not None]
    if ignored:
        log(f"predict({', '.join(ignored)}) has no meaning here: each rank reads what it scores.")
    given = {name: kwargs.pop(name) for name in (*_WORKERS, *_RESOURCES) if name in kwargs}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return scaling_config
    if scaling_config is not None:
        raise ConfigError(
            f"predict() was given scaling_config and {', '.join(given)}. Say all of it in the "
            f"ScalingConfig."
        )
    names = {"num_cpus_per_worker": "CPU", "num_gpus_per_worker": "GPU"}
    resources = {names[name]: given[name] for name in _RESOURCES if given.get(name)}
    if "GPU" in resources and not predictor_kwargs.get("use_gpu"):
        raise ConfigError(
            f"predict(num_gpus_per_worker={resources['GPU']}) would give workers GPUs that the "
            f"predictor does not use. Say BatchPredictor(..., use_gpu=True), or leave it out."
        )
    return ScalingConfig(
        num_workers=next((given[name] for name in _WORKERS if name in given), 1),
        use_gpu="GPU" in resources,
        resources_per_worker=resources,
    )
