"""A pytest plug-in with a virtual Slurm cluster for the whole test session.

It is active where a ``conftest.py`` in the root of the tests says
``pytest_plugins = ["hpctrain.testing.pytest_plugin"]``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.testing.slurm import (
    ClusterSpec,
    VirtualCluster,
    best_mode,
    describe_missing,
    missing_components,
)


def is_all_required() -> bool:
    """Return whether a test that lacks something fails instead of being skipped, as in CI."""
    return os.environ.get("HPCTRAIN_REQUIRE_ALL") == "1"  # noqa: TID251


def require_components(spec: ClusterSpec) -> None:
    """Skip or fail the calling test where the machine cannot run the cluster.

    Parameters
    ----------
    spec
        The cluster.
    """
    if missing := missing_components(spec):
        reason = describe_missing(missing, spec)
        if is_all_required():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def virtual_slurm() -> Iterator[VirtualCluster]:
    """Provide a cluster of 4 nodes with 4 CPUs and 4 fake GPUs each.

    Its nodes are namespaces where this process may make them, else only slurmds with ports of
    their own. Tests share it: one that breaks a node must repair it.
    """
    spec = ClusterSpec(num_nodes=4, cpus_per_node=4, gpus_per_node=4, mode=best_mode())
    require_components(spec)
    # pytest's own temporary directories have paths that are too long for Slurm's sockets.
    state_dir = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
    with VirtualCluster.start(spec, state_dir=state_dir) as cluster:
        yield cluster
