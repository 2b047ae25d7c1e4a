"""What ``hpctrain submit`` and ``HPCTRAIN_DETACH=1`` change: job ids are printed, and no wait."""

from __future__ import annotations

import shlex
import sys
import traceback
from typing import NoReturn

from hpctrain.errors import ConfigError
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
        f"hpctrain attach {shlex.quote(str(paths.root))}",
    )


def leave() -> NoReturn:
    """End the process: the script goes on only when a run is over. Not collective.

    Runs that the script would have begun later are named; the exit code is 2 then.
    """
    from hpctrain.launch.unrun import find_unrun

    unrun = find_unrun(reversed(list(traceback.walk_stack(None))))
    if not unrun:
        raise Detached(0)
    script = shlex.quote(sys.argv[0])
    log(
        f"{script} ends where it waits for that run. These were not begun:\n"
        + "".join(f"  {call}\n" for call in unrun)
        + "Let each run be a job (submit() in place of fit(), and hpctrain.wait() at the end), or "
        f"the script be one: hpctrain submit --script --workers N {script}"
    )
    raise Detached(ConfigError.exit_code)
