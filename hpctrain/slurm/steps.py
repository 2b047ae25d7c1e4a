"""Steps that processes of this host have started, also through an mpiexec, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.slurm.client import run_slurm
from hpctrain.slurm.output import parse_step_owners

_FIRST_LOOK_S = 0.02


def end_marked_steps(job_id: str, *marks: str, timeout_s: float) -> None:
    """End the steps whose srun has one of some marks in its environment, and these sruns.

    Not collective. What hydra's or prterun's srun has started outlives an mpiexec that is ended
    before its proxies have called back; and a SIGTERM that srun gets while it launches is lost, or
    takes effect 6 s later. The controller ends a step at once, on all nodes (measured with Slurm
    22.05). Nothing is asked of it where no such srun is left.

    Parameters
    ----------
    job_id
        The job.
    *marks
        Values of the variable `hpctrain.environ.STEP_MARK`.
    timeout_s
        Seconds until such sruns are killed.
    """
    deadline = Deadline(timeout_s, longest_gap_s=ANY_GAP_S)
    seen: set[int] = set()
    pause_s, answers = _FIRST_LOOK_S, True
    while (sruns := _marked_sruns(marks)) and answers and not deadline.is_over:
        # One that has no step yet is looked at again.
        for pid in sruns - seen:
            _send(pid, signal.SIGTERM)
        seen |= sruns
        answers = _cancel_steps(job_id, sruns)
        time.sleep(pause_s)
        pause_s *= 2
    for pid in sruns:
        _send(pid, signal.SIGKILL)
    if sruns and answers:
        _cancel_steps(job_id, sruns)


def _cancel_steps(job_id: str, sruns: set[int]) -> bool:
    """Cancel the steps that sruns of this host have started; return False if Slurm is away."""
    here = _short(socket.gethostname())
    try:
        shown = run_slurm(
            ["scontrol", "--oneliner", "show", "step", job_id], timeout_s=timeouts.STEP_QUESTION_S
        ).stdout
        steps = [
            step
            for step, (host, pid) in parse_step_owners(shown).items()
            if pid in sruns and _short(host) == here
        ]
        if steps:
            run_slurm(["scancel", *steps], timeout_s=timeouts.STEP_QUESTION_S)
    except LaunchError:
        return False
    return True


def _marked_sruns(marks: Collection[str]) -> set[int]:
    variables = {f"{environ.STEP_MARK}={mark}".encode() for mark in marks}
    found = set()
    for entry in os.scandir("/proc"):
        # Processes end while they are looked at, and others' cannot be looked into.
        with suppress(OSError):
            is_srun = entry.name.isdigit() and Path(entry.path, "comm").read_bytes() == b"srun\n"
            if is_srun and not variables.isdisjoint(
                Path(entry.path, "environ").read_bytes().split(b"\0")
            ):
                found.add(int(entry.name))
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _short(host: str) -> str:
    return host.partition(".")[0]
