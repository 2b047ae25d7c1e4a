"""Submits the short job in which the nodes are looked at."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpctrain import timeouts
from hpctrain.config import ScalingConfig
from hpctrain.plan.visibility import process_checks
from hpctrain.slurm.submit import script_parameters, submit_stored

# No step of it gets a signal: its time limit is minutes.
_SIGNAL_DELAY_S = 1


def submit_probe(
    folder: Path,
    directives: Mapping[str, str | None],
    *,
    setup: Sequence[str],
    command: str,
    cwd: str,
    environment: Mapping[str, str],
    scaling: ScalingConfig,
) -> str:
    """Submit a job with a command; return its id. Not collective.

    Parameters
    ----------
    folder
        Where its script lies.
    directives
        Options of sbatch, without dashes; None is a switch.
    setup
        Shell lines before the command.
    command
        What it runs, once, on its first node.
    cwd
        Its working directory.
    environment
        Variables that the ranks of a run get.
    scaling
        What was asked for, in whose words a refusal is explained.

    Raises
    ------
    LaunchError
        If Slurm refuses the job.
    """
    # submitit takes as long to import as all else of a submission.
    from hpctrain.slurm.executor import ScriptExecutor

    executor = ScriptExecutor(folder)
    executor.update_parameters(
        **script_parameters(directives, signal_delay_s=_SIGNAL_DELAY_S),
        setup=[
            *setup,
            *process_checks(cwd, sys.executable),
            *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        ],
        use_srun=False,
    )
    script = folder / "probe.sh"
    script.touch(mode=0o600)
    script.write_text(executor.render(command))
    return submit_stored(script, timeout_s=timeouts.VALIDATION_SUBMISSION_S, scaling=scaling)
