"""The contract of a backend, over both transports."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hpctrain import BackendConfig
from hpctrain.horovod import HorovodConfig
from hpctrain.testing.backend_contract import BackendContract

pytest.importorskip("horovod", reason="hpctrain install horovod")
pytestmark = pytest.mark.mpi


class _HorovodContract(BackendContract):
    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        import horovod.torch as hvd

        return hvd.rank(), hvd.size()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import horovod.torch as hvd
        import torch

        return float(hvd.allreduce(torch.tensor(value), op=hvd.Sum))


class TestOverTheTransportThatIsBuiltIn(_HorovodContract):
    """Over MPI, on the communicator of the ranks."""

    backend_config: ClassVar[BackendConfig] = HorovodConfig()


class TestOverGloo(_HorovodContract):
    """With the rendezvous server of rank 0."""

    backend_config: ClassVar[BackendConfig] = HorovodConfig(transport="gloo")
