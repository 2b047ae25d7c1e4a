"""JAX's backend fulfils the contract."""

from __future__ import annotations

import pytest

from hpctrain.jax import JaxConfig
from hpctrain.testing import BackendContract


@pytest.mark.mpi
class TestJaxBackend(BackendContract):
    backend_config = JaxConfig()

    @pytest.fixture(autouse=True)
    def loaded(self) -> None:
        """Import it first: what it imports sets variables of its own."""
        pytest.importorskip("jax")

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        import jax

        return jax.process_index(), jax.process_count()

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        split = NamedSharding(Mesh(np.array(jax.devices()), ("rank",)), PartitionSpec("rank"))
        of_all = jax.make_array_from_process_local_data(split, np.array([value]))
        return float(jax.jit(jax.numpy.sum)(of_all))
