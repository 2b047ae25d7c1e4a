"""The backends that ship with hpctrain fulfil the contract."""

from __future__ import annotations

import pytest

from hpctrain import BackendConfig
from hpctrain.testing.backend_contract import BackendContract
from hpctrain.torch import TorchConfig


@pytest.mark.mpi
class TestPlainBackend(BackendContract):
    backend_config = BackendConfig()


@pytest.mark.mpi
class TestTorchBackend(BackendContract):
    backend_config = TorchConfig()
