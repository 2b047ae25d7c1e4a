"""`LightGBMConfig`: how LightGBM's ranks talk to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.backend import Backend, BackendConfig
from hpctrain.checks import check_choice, check_seconds, fields_by_name

Network = Literal["auto", "mpi", "sockets"]


@fields_by_name
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

    def __post_init__(self) -> None:
        """Check every field."""
        check_choice("LightGBMConfig(network=...)", self.network, ("auto", "mpi", "sockets"))
        check_seconds("LightGBMConfig(timeout_s=...)", self.timeout_s)

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.lightgbm.backend import LightGBMBackend

        return LightGBMBackend
