"""`XGBoostConfig`: how XGBoost's ranks find each other."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import Backend, BackendConfig
from hpctrain.rules import checked, seconds


@checked(
    timeout_s=seconds,
    connect_timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class XGBoostConfig(BackendConfig):
    """How XGBoost's ranks find each other, and how long they wait for each other."""

    timeout_s: float = 1800.0
    """Seconds after which a collective of XGBoost gives up on a rank that is silent. One that has
    died is noticed at once."""
    connect_timeout_s: float = 120.0
    """Seconds for all ranks to connect to rank 0, whose tracker listens at the one address that
    they use, on a port that the kernel chooses. It is not authenticated: whoever reaches it can
    speak to it."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.xgboost.backend import XGBoostBackend

        return XGBoostBackend
