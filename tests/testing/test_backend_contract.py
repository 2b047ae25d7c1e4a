"""The backends that ship with hpctrain fulfil the contract."""

from __future__ import annotations

import pytest

from hpctrain import BackendConfig
from hpctrain.lightgbm import LightGBMConfig
from hpctrain.testing.backend_contract import BackendContract
from hpctrain.torch import TorchConfig
from hpctrain.xgboost import XGBoostConfig


@pytest.mark.mpi
class TestPlainBackend(BackendContract):
    backend_config = BackendConfig()


@pytest.mark.mpi
class TestTorchBackend(BackendContract):
    backend_config = TorchConfig()


@pytest.mark.mpi
class TestXGBoostBackend(BackendContract):
    backend_config = XGBoostConfig()

    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        """Import it first: what it imports sets variables of its own."""
        pytest.importorskip("xgboost")


@pytest.mark.mpi
class TestLightGBMBackendOverSockets(BackendContract):
    backend_config = LightGBMConfig(network="sockets")

    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        pytest.importorskip("lightgbm")


@pytest.mark.mpi
class TestLightGBMBackendOverMPI(TestLightGBMBackendOverSockets):
    backend_config = LightGBMConfig(network="mpi")
