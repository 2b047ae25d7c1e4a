"""Submit a batch script that a person could have written, as ``sbatch FILE`` does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hpctrain.config import ScalingConfig
from hpctrain.errors import LaunchError
from hpctrain.log import log
from hpctrain.slurm.client import (
    explain_unknown_job,
    find_submitted_job,
    is_passing,
    run_slurm,
    sbatch_argv,
)
from hpctrain.slurm.probe import explain_refusal


def submit_text(text: str, scaling: ScalingConfig) -> str:
    """Submit a batch script; return the id of its job. Not collective.

    Raises
    ------
    LaunchError
        If Slurm refuses it.
    """
    with _stored(text) as path:
        answer = run_slurm([*sbatch_argv(), "--parsable", str(path)])
    _check(answer.returncode, answer.stderr, scaling)
    job_id = find_submitted_job(answer.stdout, parsable=True)
    if job_id is None:
        raise LaunchError(explain_unknown_job(answer.stdout))
    return job_id


def submit_and_wait(text: str, scaling: ScalingConfig) -> int:
    """Submit a batch script, log the id of its job, and return its exit status at its end.

    Not collective.

    Raises
    ------
    LaunchError
        If Slurm refuses it.
    """
    with _stored(text) as path:
        argv = [*sbatch_argv(), "--parsable", "--wait", str(path)]
        with subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
        ) as process:
            assert process.stdout is not None
            job_id, said = None, ""
            # sbatch itself goes on until the end of the job.
            while job_id is None and (line := process.stdout.readline()):
                job_id, said = find_submitted_job(line, parsable=True), said + line
            if job_id is not None:
                log(f"job {job_id}", to=sys.stdout)
            _, printed = process.communicate()
    if job_id is None:
        _check(process.returncode, printed, scaling)
        raise LaunchError(explain_unknown_job(said))
    return process.returncode


@contextmanager
def _stored(text: str) -> Iterator[Path]:
    with TemporaryDirectory(prefix="hpctrain-") as folder:
        # Slurm keeps a copy.
        path = Path(folder) / "train.sbatch"
        path.write_text(text, encoding="utf-8")
        yield path


def _check(returncode: int, printed: str, scaling: ScalingConfig) -> None:
    if returncode != 0:
        raise LaunchError(explain_refusal(printed, scaling), transient=is_passing(printed))
