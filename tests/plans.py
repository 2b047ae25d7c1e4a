"""Plans and settings of runs for tests that start no rank."""

from __future__ import annotations

from typing import Any

from hpctrain.config import ScalingConfig
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import NodeShape, node_range, place_workers
from hpctrain.plan.spec import RankSettings

SETTINGS = RankSettings(
    name="run",
    cwd="/",
    sys_path=(),
    cpus_per_worker=1,
    gpus_per_worker=0,
    commit_timeout_s=1.0,
)


def make_plan(launcher: Any, *, num_workers: int = 2, cpus: int = 2) -> LaunchPlan:
    """Return the plan of workers on nodes of some CPUs, with nothing of a site in it."""
    scaling = ScalingConfig(num_workers=num_workers)
    placement = place_workers(scaling, NodeShape(cpus=cpus, gpus=0))
    return LaunchPlan(
        launcher=launcher,
        placement=placement,
        job_nodes=node_range(scaling, placement),
        threads_per_task=1,
        mpi="auto",
        directives={},
        first_job_directives={},
        setup=(),
        srun_args=(),
        environment={},
        stop_notice_s=100,
    )
