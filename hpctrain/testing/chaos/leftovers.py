"""Checks that a trial leaves nothing on its nodes outside of its folder.

Other programs have files in ``/tmp`` and ``/dev/shm`` too. So the processes of a trial have a
``TMPDIR`` of its own, and where they run on this machine, and root may mount, a ``/dev/shm`` of its
own; virtual nodes have one each.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpctrain.testing.slurm import VirtualCluster

# Of hpctrain, MPICH with hydra, Open MPI and PMIx. Not what a user's script leaves by itself.
_OURS = re.compile(r"(hpctrain-|mpich_|hydra|ompi\.|prte\.|pmix|vader_segment|sm_segment)")
# Its second number is the PID namespace of the process that has made it.
_CHECKPOINT = re.compile(r"hpctrain-checkpoint-\d+-[0-9a-f]+\.([0-9a-f]+)-.+")
_SHM = "/dev/shm"
_SHM_MIB = 1024


class Surroundings:
    """Where the processes of a trial put what does not belong to a run. Made by `surround`.

    Parameters
    ----------
    tmp
        Their ``TMPDIR``.
    shm
        Their ``/dev/shm``; None: that of the machine, or of the cluster's nodes.
    cluster
        Whose nodes they run on; None: this machine.
    """

    def __init__(self, *, tmp: Path, shm: Path | None, cluster: VirtualCluster | None) -> None:
        self.tmp = tmp
        self._shm = shm
        # In mode flat the nodes are this machine, and share its /dev/shm with everybody.
        has_own = cluster is not None and cluster.spec.mode == "namespaces"
        self._cluster = cluster if has_own else None
        self._before = self._look()
        self._boots = self._look_at_boots()

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` in these surroundings."""
        if self._shm is None:
            return list(argv)
        mount = f'mount --bind "$0" {_SHM} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self._shm), *argv]

    def leftovers(self, folders: Iterable[Path]) -> list[str]:
        """Return what is left over when all processes are gone.

        A node that was without power has begun anew since, and no process of today can tell that
        those of its earlier boot are dead. A machine has a ``/tmp`` of its own, and clears it; the
        nodes of a virtual cluster share one. So what only an earlier boot can have made is none.

        Parameters
        ----------
        folders
            Where scripts for sbatch may be left over too.
        """
        scripts = {str(path) for folder in folders for path in folder.glob(".submission_file_*")}
        found = self._look() - self._before
        boots = self._look_at_boots()
        if boots != self._boots:
            found -= {path for path in found if _is_of_earlier_boot(Path(path), boots)}
        return sorted(found | scripts)

    def _look_at_boots(self) -> dict[int, float]:
        """Return the PID namespace of each node that is on, and of this machine, and since when."""
        if self._cluster is None:
            return {}
        boots = {os.stat("/proc/self/ns/pid").st_ino: 0.0}
        argv = ["stat", "--dereference", "--format=%i", "/proc/self/ns/pid"]
        for node in ("head", *self._cluster.node_names):
            space = int(self._cluster.run_on(node, argv).stdout)
            # Its process 1 writes it before anything else runs there.
            boots[space] = self._cluster.layout.node_identity(node).stat().st_mtime
        return boots

    def _look(self) -> set[str]:
        places = filter(None, (self.tmp, self._shm))
        found = {str(path) for place in places for path in place.iterdir() if _is_ours(path)}
        if self._cluster is not None:
            for node in self._cluster.node_names:
                listed = self._cluster.run_on(node, ["find", _SHM, "-maxdepth", "1"]).stdout
                found |= {f"{node}:{path}" for path in listed.splitlines() if _is_ours(Path(path))}
        return found


@contextmanager
def surround(*, cluster: VirtualCluster | None) -> Iterator[Surroundings]:
    """Make the surroundings of a trial, and remove them. Not collective."""
    with ExitStack() as stack:
        # Not below the trial's folder: sockets that libraries make there need a short path.
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hc-", dir="/tmp")))
        shm = None
        if cluster is None and can_mount():
            shm = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp")))
            stack.enter_context(filesystem(shm, _SHM_MIB))
        yield Surroundings(tmp=tmp, shm=shm, cluster=cluster)


def can_mount() -> bool:
    """Return whether this process may mount filesystems. Not collective."""
    return os.geteuid() == 0


@contextmanager
def filesystem(path: Path, size_mib: int) -> Iterator[None]:
    """Give a directory a filesystem of its own, in memory. Not collective."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "chaos", str(path)]
    subprocess.run(mount, check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=10)


def pid_namespace_of(name: str) -> int | None:
    """Return the PID namespace that the name of a temporary checkpoint has; None of others. Pure.

    Examples
    --------
    >>> pid_namespace_of("hpctrain-checkpoint-17-0123456789abcdef.f00000f4-x1y2")
    4026532084
    """
    found = _CHECKPOINT.fullmatch(name)
    return None if found is None else int(found[1], 16)


def _is_of_earlier_boot(path: Path, boots: Mapping[int, float]) -> bool:
    """Return whether no process that is alive, or was since the nodes began, can have made it."""
    space = pid_namespace_of(path.name)
    if space is None or not path.is_absolute():
        return False
    # Linux gives a new namespace the number of one that is gone.
    return space not in boots or path.stat().st_mtime < boots[space]


def _is_ours(path: Path) -> bool:
    return _OURS.match(path.name) is not None
