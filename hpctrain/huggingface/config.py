"""`AccelerateConfig`: how torch.distributed and Accelerate are set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.rules import checked, mapping, with_value
from hpctrain.torch.config import TorchConfig


def _variables(what: str, value: Any) -> Any:
    variables = mapping(" of environment variables")(what, value)
    for name, text in variables.items():
        if not isinstance(text, str) or "\0" in name + text or "=" in name:
            raise ConfigError(
                f"{with_value(what, variables)}: names and values of environment variables, all "
                f"of them text."
            )
    return variables


@checked(
    variables=_variables,
)
@dataclass(frozen=True, kw_only=True)
class AccelerateConfig(TorchConfig):
    """How torch.distributed and Accelerate are set up."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that Accelerate reads on every rank: ``ACCELERATE_MIXED_PRECISION``,
    ``FSDP_VERSION``. `AccelerateTrainer` makes them of a file of ``accelerate config``."""

    _backend_path = "hpctrain.huggingface.backend.AccelerateBackend"
