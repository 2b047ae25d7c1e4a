"""`XGBoostConfig`: how XGBoost's ranks connect."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import BackendConfig
from hpctrain.rules import checked, seconds


@checked(
    timeout_s=seconds,
    connect_timeout_s=seconds,
)
@dataclass(frozen=True, kw_only=True)
class XGBoostConfig(BackendConfig):
    """How XGBoost's ranks connect, and how long they wait for each other."""

    timeout_s: float = 1800.0
    """Seconds after which a collective of XGBoost fails if a rank does not respond. The death of a
    rank is detected at once."""
    connect_timeout_s: float = 120.0
    """Seconds for all ranks to connect to rank 0, whose tracker listens on one address, at a port
    that the kernel chooses. The tracker has no authentication: any process that reaches it can
    connect."""

    _backend_path = "hpctrain.xgboost.backend.XGBoostBackend"
