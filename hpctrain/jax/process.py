"""What JAX is in this process: which devices it uses, and how it was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hpctrain import environ
from hpctrain.errors import ConfigError

# PJRT's name for the number of threads that the CPU computes with.
_THREADS = "PJRT_NPROC"


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What this process was like before JAX was prepared."""

    threads: str | None
    options: dict[str, Any]
    computed: bool


# Of the process, as JAX's own state is.
_before: _Before | None = None


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
    # Nothing public tells.
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


def prepare(*, cpus: int, gpus: Sequence[int]) -> None:
    """Let JAX use this rank's CPUs, or its GPUs, until `restore`. Not collective.

    Parameters
    ----------
    cpus
        Threads.
    gpus
        As of `use_devices`.
    """
    global _before
    _before = _Before(
        threads=environ.variable(_THREADS),
        computed=computes_already(),
        options=use_devices(gpus),
    )
    environ.export({_THREADS: str(cpus)})


def restore() -> None:
    """Let JAX be in this process as it was before `prepare`. Not collective.

    Does nothing if it was not prepared. Where it had not computed before, it chooses its devices
    afresh. A world of several ranks that failed is left alone: to leave it waits for the others.
    """
    global _before
    if _before is None:
        return
    jax = import_jax()
    before, _before = _before, None
    if before.threads is None:
        environ.unset(_THREADS)
    else:
        environ.export({_THREADS: before.threads})
    for name, value in before.options.items():
        jax.config.update(name, value)
    if not before.computed and not jax.distributed.is_initialized():
        import_module("jax.extend.backend").clear_backends()
