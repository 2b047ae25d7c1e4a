"""The backends that ship with hpctrain fulfil the contract, and broken ones do not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpctrain import BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig, WorkerError
from hpctrain.backend import Backend, BackendContext
from hpctrain.lightgbm import LightGBMConfig
from hpctrain.testing.backend_contract import BackendContract
from hpctrain.testing.backend_runs import train_one_step
from hpctrain.testing.watched_backend import WatchedConfig
from hpctrain.torch import TorchConfig
from hpctrain.xgboost import XGBoostConfig


def test_ranks_of_the_contract_are_forked_where_those_of_the_users_are() -> None:
    assert WatchedConfig(watched=TorchConfig()).preload == TorchConfig.preload != ()
    assert WatchedConfig(watched=BackendConfig()).preload == ()


@pytest.mark.mpi
class TestPlainBackend(BackendContract):
    backend_config = BackendConfig()


@pytest.mark.mpi
class TestTorchBackend(BackendContract):
    backend_config = TorchConfig()

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        from torch import distributed

        return distributed.get_rank(), distributed.get_world_size()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import torch
        from torch import distributed

        tensor = torch.tensor(value)
        distributed.all_reduce(tensor)
        return tensor.item()


@pytest.mark.mpi
class TestXGBoostBackend(BackendContract):
    backend_config = XGBoostConfig()

    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        """Import it first: what it imports sets variables of its own."""
        pytest.importorskip("xgboost")

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        from xgboost import collective

        return collective.get_rank(), collective.get_world_size()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import numpy as np
        from xgboost import collective

        return float(collective.allreduce(np.array([value]), collective.Op.SUM)[0])


@pytest.mark.mpi
class TestLightGBMBackendOverSockets(BackendContract):
    backend_config = LightGBMConfig(network="sockets")

    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        pytest.importorskip("lightgbm")


@pytest.mark.mpi
class TestLightGBMBackendOverMPI(TestLightGBMBackendOverSockets):
    backend_config = LightGBMConfig(network="mpi")


class Uneven(Backend):
    def on_start(self, context: BackendContext, config: BackendConfig) -> None:
        context.comm.barrier()
        if context.world.world_rank == 0:
            context.comm.bcast("address")


class OtherOrder(Backend):
    def on_shutdown(self, context: BackendContext, config: BackendConfig) -> None:
        if context.world.world_rank == 0:
            context.comm.barrier()
        context.comm.allgather(context.world.world_rank)


@dataclass(frozen=True, kw_only=True)
class Broken(BackendConfig):
    backend: type[Backend]

    @property
    def backend_cls(self) -> type[Backend]:
        return self.backend


for _class in (Uneven, OtherOrder, Broken):
    _class.__module__ = "__main__"  # pickled with its code: ranks cannot import this file


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("backend", "complaint"),
    [
        (
            Uneven,
            "Uneven.on_start() is collective, and its ranks do not call the same: rank 0 calls "
            "comm.bcast(), rank 1 comes to the end.",
        ),
        (
            OtherOrder,
            "OtherOrder.on_shutdown() is collective, and its ranks do not call the same: rank 0 "
            "calls comm.barrier(), rank 1 calls comm.allgather().",
        ),
    ],
)
def test_what_is_wrong_with_a_backend_is_said_by_its_ranks(
    backend: type[Backend], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerError, match=re.escape(complaint)):
        DataParallelTrainer(
            train_one_step,
            backend_config=WatchedConfig(watched=Broken(backend=backend)),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=tmp_path, launcher="local"),
        ).fit()


class _InOtherOrder(BackendContract):
    backend_config = BackendConfig()

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        return 0, 2


class _AddsNothingUp(BackendContract):
    backend_config = BackendConfig()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        return value


class _KnowsNoRanks(BackendContract):
    backend_config = BackendConfig()

    @staticmethod
    def rank_and_size() -> None:
        return None


class _SumsNothingUp(BackendContract):
    backend_config = BackendConfig()

    @staticmethod
    def sum_over_ranks(value: float) -> None:
        return None


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("contract", "complaint"),
    [
        (_KnowsNoRanks(), "the framework's rank and size are None on rank 0 of 2"),
        (_SumsNothingUp(), "1 of rank 0 and 2 of rank 1 is None on rank 0"),
        (_InOtherOrder(), r"the framework's rank and size are \(0, 2\) on rank 1 of 2"),
        (_AddsNothingUp(), r"1 of rank 0 and 2 of rank 1 is 1\.0 on rank 0"),
    ],
)
def test_a_framework_that_counts_ranks_otherwise_is_noticed(
    contract: BackendContract, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        contract.test_a_killed_rank_is_started_again_and_all_go_on_at_the_right_step(tmp_path)
