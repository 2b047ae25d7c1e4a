"""What ``hpctrain submit`` changes: the id of each job is printed, and nobody waits for a run."""

from __future__ import annotations

import sys
from typing import NoReturn

from hpctrain.log import log
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status

printed: list[RunPaths] = []
"""The runs whose jobs were printed by this process."""


class Detached(SystemExit):
    """Ends the process where the script begins to wait for a run."""


def print_job_id(paths: RunPaths) -> None:
    """Print the job id of a run on stdout, and how to follow it on stderr. Not collective."""
    printed.append(paths)
    status = read_status(paths)
    job = (status and status.job_id) or ""
    # `hpctrain submit` sends what the script itself prints to stderr.
    print(job, file=sys.__stdout__, flush=True)
    log(
        f"{paths.root.name} is job {job or '(none: it runs without Slurm)'}. Follow it with: "
        f"hpctrain attach {paths.root}",
    )


def leave() -> NoReturn:
    """End the process: the script goes on only when a run is over. Not collective."""
    raise Detached(0)
