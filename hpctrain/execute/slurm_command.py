"""Run a command of Slurm, bounded in time."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from hpctrain.errors import LaunchError

_TIMEOUT_S = 30.0
# A step that has just died may still hold what the next one needs: "Unable to create step for job
# 1: Memory required by task is not available" (seen with Slurm 22.05 in a job queued again).
_PASSING = re.compile(r"[Uu]nable to (contact|create step)|timed out|try again|temporarily")


def run_slurm(
    argv: Sequence[str],
    *,
    timeout_s: float = _TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm and return what it said. Not collective.

    Parameters
    ----------
    environment
        Its whole environment; None is that of this process.

    Raises
    ------
    LaunchError
        If it is not installed, or does not answer in time.
    """
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, env=environment
        )
    except FileNotFoundError as error:
        raise LaunchError(
            f"{argv[0]} is not on PATH. Load Slurm's module, or choose another launcher "
            f"(HPCTRAIN_LAUNCHER=local)."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"'{' '.join(argv)}' did not answer within {timeout_s:.0f} s.", transient=True
        ) from error


def is_passing(said: str) -> bool:
    """Return whether what a command of Slurm said may be over when it is tried again.

    Not collective.
    """
    return bool(_PASSING.search(said))
