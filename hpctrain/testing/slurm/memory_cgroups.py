"""The memory limits of jobs, which task/cgroup sets in a hierarchy that all nodes share.

Each slurmd has a group of its own there, ``/slurm_NODE``, but nodes of two clusters have the same
names. Their jobs do not: each cluster counts from another number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

HIERARCHY = Path("/sys/fs/cgroup/memory")
"""Where version 1 is mounted, on the host and on the nodes. Slurm 22.05 wants systemd for 2."""

_JOBS_PER_CLUSTER = 10_000


def is_mounted() -> bool:
    """Return whether this machine has the hierarchy."""
    return (HIERARCHY / "memory.use_hierarchy").exists()


def first_job_id(cluster: int) -> int:
    """Return the number of the first job of a cluster.

    Examples
    --------
    >>> first_job_id(7)
    70001
    """
    return cluster * _JOBS_PER_CLUSTER + 1


def remove_groups(cluster: int, nodes: Iterable[str]) -> None:
    """Remove what a cluster has left behind, when all its processes are gone."""
    first = first_job_id(cluster)
    jobs = range(first, first + _JOBS_PER_CLUSTER)
    for node in nodes:
        top = HIERARCHY / f"slurm_{node}"
        for user in top.glob("uid_*"):
            for job in user.glob("job_*"):
                if int(job.name.removeprefix("job_")) in jobs:
                    _remove_tree(job)
            _remove(user)
        _remove(top)


def _remove_tree(group: Path) -> None:
    # The files of a group cannot be removed, and go with it.
    for inside in group.iterdir():
        if inside.is_dir():
            _remove_tree(inside)
    _remove(group)


def _remove(group: Path) -> None:
    # Another cluster may use it too.
    with contextlib.suppress(OSError):
        group.rmdir()
