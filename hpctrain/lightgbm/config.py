"""`LightGBMConfig`: how LightGBM's ranks talk to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.backend import Backend, BackendConfig
from hpctrain.rules import checked, choice, seconds

Network = Literal["auto", "mpi", "sockets"]


@checked(
    network=choice("auto", "mpi", "sockets"),
    timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class LightGBMConfig(BackendConfig):
    """How LightGBM's ranks talk to each other. The model is the same either way."""

    network: Network = "auto"
    """``mpi``: through MPI, with LightGBM as it comes from PyPI; no ports, and whatever network MPI
    has. ``sockets``: LightGBM's own, over TCP, not authenticated. ``auto``: MPI, but
    sockets where ranks outnumber the CPUs of a node, since MPI spins while it waits."""
    timeout_s: float = 1800.0
    """Seconds, in whole minutes, after which sockets give up on a rank that is silent. One that has
    died is noticed at once."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.lightgbm.backend import LightGBMBackend

        return LightGBMBackend
