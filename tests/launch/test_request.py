"""What `HPCTRAIN_SLURM` and the options of verbs change in a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.request import override_slurm


def test_an_unknown_field_of_the_slurm_config_is_refused_with_the_known_ones() -> None:
    request: Any = SimpleNamespace(scaling_config=ScalingConfig())
    with pytest.raises(ConfigError, match=r"HPCTRAIN_SLURM names 'partion'; .* partition, "):
        override_slurm(request, {"partion": "gpu", "qos": "long"})
