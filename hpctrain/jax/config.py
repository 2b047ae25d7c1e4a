"""`JaxConfig`: how JAX's processes find each other."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import BackendConfig
from hpctrain.rules import checked, seconds


@checked(
    connect_timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class JaxConfig(BackendConfig):
    """How JAX's processes find each other."""

    connect_timeout_s: float = 120.0
    """Seconds for all ranks to connect to rank 0, whose coordinator listens at the one address that
    they use, on a port that the kernel chooses. It is not authenticated: any process
    that reaches it can speak to it."""

    _backend_path = "hpctrain.jax.backend.JaxBackend"
