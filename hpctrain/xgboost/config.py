"""`XGBoostConfig`: how XGBoost's ranks find each other."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import Backend, BackendConfig
from hpctrain.checks import check_seconds, fields_by_name


@fields_by_name
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

    def __post_init__(self) -> None:
        """Check every field."""
        check_seconds("XGBoostConfig(timeout_s=...)", self.timeout_s)
        check_seconds("XGBoostConfig(connect_timeout_s=...)", self.connect_timeout_s)

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.xgboost.backend import XGBoostBackend

        return XGBoostBackend
