"""`AccelerateConfig`: how torch.distributed and Accelerate are set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpctrain.backend import Backend
from hpctrain.checks import fields_by_name
from hpctrain.errors import ConfigError
from hpctrain.torch.config import TorchConfig


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class AccelerateConfig(TorchConfig):
    """How torch.distributed and Accelerate are set up."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that Accelerate reads on every rank: ``ACCELERATE_MIXED_PRECISION``,
    ``FSDP_VERSION``. `AccelerateTrainer` makes them of a file of ``accelerate config``."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if not all(isinstance(part, str) for item in self.variables.items() for part in item):
            raise ConfigError(
                f"AccelerateConfig(variables={dict(self.variables)!r}): names and values of "
                f"environment variables, all of them text."
            )

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.huggingface.backend import AccelerateBackend

        return AccelerateBackend
