"""``hpctrain submit --script``: the script itself is the job, as in your own batch script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def submit_script(
    script: Path,
    args: Sequence[str],
    *,
    workers: int | None,
    cpus: int | None,
    gpus: int,
    slurm: Mapping[str, Any],
    wait: bool,
    dry_run: bool,
) -> int:
    """Submit a job that runs a script; return the exit status. Not collective.

    No part of the script runs here, so options set the resources of the job.

    Raises
    ------
    ConfigError
        If a value is invalid.
    LaunchError
        If Slurm refuses the job.
    """
    from hpctrain.cli.exit_codes import OK, say
    from hpctrain.cli.options import naming_flags
    from hpctrain.cli.slurm_options import scaling_of
    from hpctrain.errors import ConfigError
    from hpctrain.launch.request import with_sbatch_variables
    from hpctrain.plan.site import load_site
    from hpctrain.plan.template import render_template
    from hpctrain.slurm.probe import place_on_partition
    from hpctrain.slurm.script_job import submit_and_wait, submit_text

    if not script.exists():
        raise ConfigError(f"there is no script {script} (working directory {Path.cwd()}).")
    if workers is None:
        raise ConfigError(
            "--script needs --workers: no part of the script runs before the job, so set the "
            "workers of its largest fit(), and with --cpus and --gpus the resources of each."
        )
    scaling = scaling_of(workers, cpus=cpus, gpus=gpus, slurm=slurm)
    with naming_flags():
        site = with_sbatch_variables(load_site(scaling.slurm.site))
        _, node = place_on_partition(scaling, site, needs_answer=not dry_run)
        text = render_template(
            "train.sbatch",
            script=str(script),
            args=args,
            scaling=scaling,
            site=site,
            node=node,
            python=sys.executable,
        )
    if dry_run:
        print(text, end="")
        return OK
    if wait:
        return submit_and_wait(text, scaling)
    job_id = submit_text(text, scaling)
    print(job_id, flush=True)
    say(
        f"{shlex.join([str(script), *args])} is job {job_id}: each of its fit() runs there, one "
        f"after another. Its log: slurm-{job_id}.out; its runs: hpctrain list"
    )
    return OK
