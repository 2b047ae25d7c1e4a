"""`initial_status`: the status with which an executor begins."""

from __future__ import annotations

import os
import socket
import time

from hpctrain import environ
from hpctrain.config import RunConfig
from hpctrain.execute.process import process_start_time
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, last_attempt


def initial_status(paths: RunPaths, plan: LaunchPlan, run_config: RunConfig) -> RunStatus:
    """Return the status of a run whose executor is this process. Not collective."""
    pid = os.getpid()
    assert run_config.name is not None
    return RunStatus(
        name=run_config.name,
        state=RunState.STARTING,
        launcher=plan.launcher,
        job_id=environ.variable("SLURM_JOB_ID"),
        restarts=environ.restart_count(),
        owner_host=socket.gethostname(),
        owner_pid=pid,
        owner_start=process_start_time(pid) or 0,
        started_at=time.time(),
        **last_attempt(paths),
    ).placed_in(paths.root)
