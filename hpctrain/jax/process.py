"""What JAX is in this process, and which devices it uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpctrain.errors import ConfigError


def import_jax() -> Any:
    """Import and return jax. Not collective.

    Raises
    ------
    ConfigError
        If it is missing.
    """
    try:
        import jax
    except ImportError as error:
        raise ConfigError(
            f"jax cannot be imported: {error}. Install it where the workers run: pip install "
            f"'hpctrain[jax]'; for GPUs also 'jax[cuda13]'."
        ) from error
    return jax


def computes_already() -> bool:
    """Return whether JAX has chosen its devices in this process, for good. Not collective."""
    # No public function shows it.
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def use_devices(gpus: Sequence[int]) -> dict[str, Any]:
    """Let JAX use some devices only, from its first computation on. Not collective.

    Parameters
    ----------
    gpus
        Places of this process's GPUs in ``CUDA_VISIBLE_DEVICES``. None: it is to use the CPU.

    Returns
    -------
    dict
        What options of JAX have been changed, with the values from before.
    """
    jax = import_jax()
    options: dict[str, Any] = {}
    if gpus:
        visible = ",".join(map(str, gpus))
        options = {"jax_cuda_visible_devices": visible, "jax_rocm_visible_devices": visible}
    elif not jax.config.values["jax_platforms"]:
        options = {"jax_platforms": "cpu"}
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    return before
