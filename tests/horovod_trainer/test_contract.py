"""The contract of a backend, over both transports."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hpctrain import BackendConfig
from hpctrain.horovod import HorovodConfig
from hpctrain.testing.backend_contract import BackendContract

pytest.importorskip("horovod", reason="hpctrain install horovod")
pytestmark = pytest.mark.mpi


class TestOverTheTransportThatIsBuiltIn(BackendContract):
    """Over MPI, on the communicator of the ranks."""

    backend_config: ClassVar[BackendConfig] = HorovodConfig()


class TestOverGloo(BackendContract):
    """With the rendezvous server of rank 0."""

    backend_config: ClassVar[BackendConfig] = HorovodConfig(transport="gloo")
