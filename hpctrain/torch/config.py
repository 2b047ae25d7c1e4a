"""`TorchConfig`: how torch.distributed is set up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.backend import Backend, BackendConfig
from hpctrain.checks import fields_by_name
from hpctrain.errors import ConfigError


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class TorchConfig(BackendConfig):
    """How torch.distributed is set up."""

    backend: str | None = None
    """``nccl``, ``gloo``, or whatever else this torch has; ``cpu:gloo,cuda:nccl`` is one for each
    kind of device. None: nccl where workers have GPUs, gloo otherwise. Gloo listens at the address
    that the host name stands for: set ``GLOO_SOCKET_IFNAME`` where that is the wrong network."""
    timeout_s: float = 1800
    """Seconds after which a collective gives up."""

    def __post_init__(self) -> None:
        """Check every field."""
        backend: object = self.backend
        if backend is not None and not (isinstance(backend, str) and backend):
            raise ConfigError(
                f"TorchConfig(backend={backend!r}): 'nccl', 'gloo' or another name that "
                f"torch.distributed knows, or None for the one that fits the workers."
            )
        timeout: object = self.timeout_s
        number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if not number or not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"TorchConfig(timeout_s={timeout!r}): seconds, more than 0.")

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.torch.process_group import TorchBackend

        return TorchBackend
