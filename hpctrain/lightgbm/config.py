"""`LightGBMConfig`: how LightGBM's ranks communicate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.backend import BackendConfig
from hpctrain.rules import checked, choice, seconds

Network = Literal["auto", "mpi", "sockets"]


@checked(
    network=choice("auto", "mpi", "sockets"),
    timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class LightGBMConfig(BackendConfig):
    """How LightGBM's ranks communicate. The model does not depend on it."""

    network: Network = "auto"
    """``mpi``: over MPI, with LightGBM's wheel from PyPI; without ports. ``sockets``: LightGBM's
    own, over TCP, without authentication. ``auto``: MPI, but sockets if a node has more ranks than
    CPUs, because MPI spins while it waits."""
    timeout_s: float = 1800.0
    """Seconds, rounded up to minutes, after which sockets fail if a rank does not respond. The
    death of a rank is detected at once."""

    _backend_path = "hpctrain.lightgbm.backend.LightGBMBackend"
