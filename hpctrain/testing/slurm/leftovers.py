"""Processes of a flat cluster that outlive its daemons.

There, only their environment and their ancestors distinguish its processes from others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpctrain.testing.slurm.processes import HOST_PROC, ProcessIdentity, wait_until

NODE_VARIABLE = "HPCTRAIN_VIRTUAL_NODE"
"""Every command and daemon on a node of a flat cluster finds the node's name in it."""


@dataclass(frozen=True, kw_only=True)
class _Process:
    identity: ProcessIdentity
    parent: int
    environ: frozenset[bytes]


def end_leftovers(slurm_conf: Path) -> None:
    """Kill commands on nodes, step daemons, tasks and all their descendants.

    This process and its ancestors are spared: the user may call from within a job.

    Parameters
    ----------
    slurm_conf
        Configuration of the cluster.
    """
    # Again and again, as one that is about to die may just have started another.
    while doomed := _find_leftovers(slurm_conf):
        for identity in doomed:
            identity.kill()
        wait_until(
            partial(_all_dead, doomed), what="what still runs on the cluster to die", timeout_s=10
        )


def _all_dead(identities: list[ProcessIdentity]) -> bool:
    return not any(identity.is_alive() for identity in identities)


def _find_leftovers(slurm_conf: Path) -> list[ProcessIdentity]:
    processes = {process.identity.pid: process for process in _own_processes()}
    spared = set()
    pid = os.getpid()
    while pid in processes:
        spared.add(pid)
        pid = processes[pid].parent

    marker = b"SLURM_CONF=" + os.fsencode(slurm_conf)

    def belongs_to_the_cluster(process: _Process) -> bool:
        # A step daemon has the variables of its slurmd. A task gets SLURM_CONF from its step
        # daemon, also with --export=NONE. A user's shell may have it too, but neither of these.
        return marker in process.environ and any(
            variable.startswith((b"SLURM_JOB_ID=", NODE_VARIABLE.encode() + b"="))
            for variable in process.environ
        )

    doomed = {pid for pid, process in processes.items() if belongs_to_the_cluster(process)}
    while children := {
        pid for pid, process in processes.items() if process.parent in doomed and pid not in doomed
    }:
        doomed |= children
    return [processes[pid].identity for pid in doomed - spared]


def _own_processes() -> Iterator[_Process]:
    for directory in HOST_PROC.iterdir():
        if not directory.name.isdecimal():
            continue
        try:
            if directory.stat().st_uid != os.getuid():
                continue
            identity = ProcessIdentity.of(int(directory.name))
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            environ = (directory / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if identity is not None:
            yield _Process(
                identity=identity,
                parent=int(fields[1]),
                environ=frozenset(environ.split(b"\0")),
            )
