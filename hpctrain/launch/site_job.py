"""What a short job sees of nodes, for a site profile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain.doctor.compare import common_interfaces, find_connected
from hpctrain.doctor.finding import Finding
from hpctrain.errors import LaunchError
from hpctrain.launch.examine import probe_nodes, probe_settings
from hpctrain.launch.request import Submission
from hpctrain.slurm.site_profile import NodesSeen


def see_nodes(
    submission: Submission, *, patience_s: float, say: Callable[[str], None]
) -> NodesSeen:
    """Return what a job of at most two nodes sees of them.

    Not collective.

    Parameters
    ----------
    submission
        A run that would be a job, whose options that job has.
    patience_s
        Seconds that the job may wait in the queue.
    say
        Is given what is waited for.

    Raises
    ------
    LaunchError
        If it is refused, does not start in time, or gives no answer.
    """
    if submission.plan.launcher != "slurm":
        raise LaunchError(
            f"a run would start by {submission.plan.launcher!r} here, and not as a job. Probe "
            f"without --job, or on a login node."
        )
    settings = probe_settings(submission, ("mpi4py.MPI",))
    storage = Path(settings.storage)
    was_there = storage.is_dir()
    storage.mkdir(parents=True, exist_ok=True)
    try:
        answer = probe_nodes(submission, settings, patience_s=patience_s, say=say)
    finally:
        if not was_there:
            # Unless a run has begun there meanwhile.
            with suppress(OSError):
                storage.rmdir()
    if isinstance(answer, Finding):
        said = ". ".join(text.rstrip(".") for text in (answer.what, answer.step) if text)
        raise LaunchError(f"{said}. Without --job the profile has what Slurm alone knows.")
    if not answer["machines"]:
        raise LaunchError("no node of the job answered. Try again, or probe without --job.")
    return read_answer(answer)


def read_answer(answer: Mapping[str, Any]) -> NodesSeen:
    """Return what nodes have, from what `hpctrain.doctor.probe.probe` returns.

    Not collective.
    """
    interfaces, fast = common_interfaces(answer["machines"])
    connected = find_connected(answer["worlds"])
    chosen = answer["chosen"]
    others = [name for name in connected if name != chosen]
    return NodesSeen(
        hosts=[machine["host"] for machine in answer["machines"]],
        interfaces=interfaces,
        fast_interfaces=fast,
        launcher=chosen,
        is_connected=chosen in connected,
        other_mpi=_mpi_of(others[0]) if others else None,
    )


def _mpi_of(launcher: str) -> str:
    """Return the ``SlurmConfig(mpi=...)`` of a launcher."""
    if launcher.startswith("srun "):
        return launcher.rpartition("=")[2]
    # The wheel of this Python; another one has its own.
    return "wheel" if Path(launcher).parent == Path(sys.executable).parent else launcher
