"""Clusters of their own, for tests that need what the one of all tests has not, or change it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctrain.testing.pytest_plugin import require_components
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode, memory_cgroups


@contextmanager
def own_cluster(spec: ClusterSpec, *accounting: str) -> Iterator[VirtualCluster]:
    """Start a cluster in which sacctmgr has been given some commands, such as "add qos brief"."""
    require_components(spec)
    # pytest's own temporary directories have paths that are too long for Slurm's sockets.
    with (
        tempfile.TemporaryDirectory(prefix="hc-", dir="/tmp") as state,
        VirtualCluster.start(spec, state_dir=Path(state)) as cluster,
    ):
        for words in accounting:
            done = cluster.run_on("head", ["sacctmgr", "--immediate", *words.split()])
            assert done.returncode == 0, done.stdout + done.stderr
        yield cluster


@contextmanager
def cluster_with_limits() -> Iterator[VirtualCluster]:
    """Start one of two nodes whose jobs get the memory that they asked for, and no more.

    Each task has a cgroup of its own.
    """
    if best_mode() != "namespaces" or not memory_cgroups.is_mounted():
        pytest.skip("jobs with limits need namespaces, and cgroup v1's memory hierarchy")
    with own_cluster(ClusterSpec(num_nodes=2, gpus_per_node=0, memory_limits=True)) as cluster:
        yield cluster
