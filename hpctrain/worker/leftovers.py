"""What ranks that are killed leave on a node: shared memory of MPI.

MPICH's ranks of a node find each other by a file, ``/dev/shm/mpich_shm_HASH_NODE`` (5.0:
``src/mpid/ch4/shm/posix/posix_init.c``). HASH is that of the world's name, which under Slurm is
JOB.STEP, and a requeue uses both again. Where the file of ranks that were killed is still there,
the next ranks of that name open it and wait in MPI_Init for peers that are dead. None opens it by
name once MPI_Init is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from hpctrain import environ

_SHM = "/dev/shm"
_SEGMENT = re.compile(r"mpich_(?:shm|vci)_([0-9a-f]{1,8})_\d+")
# FNV-1a with 32 bits, as MPICH's HASH_FNV.
_FNV_BASIS, _FNV_PRIME = 0x811C9DC5, 0x01000193
# A job that has started more steps than that is not looked at any further.
_MOST_STEPS = 10_000
# The clocks of processes and of files differ by less, and a requeue takes longer.
_MARGIN_S = 1.0
_STEP_DAEMON = "slurmstepd"


def segment_name(world: str, *, node: int) -> str:
    """Return the name of the shared memory of a world's ranks on a node. Not collective.

    Examples
    --------
    >>> segment_name("1.0", node=0)
    'mpich_shm_eb421bf2_0'
    """
    return f"mpich_shm_{_hash(world):x}_{node}"


def unlink_mapped_segments(pid: int | str = "self") -> None:
    """Unlink MPICH's shared memory that a process has mapped; those who have it keep it.

    Not collective, but harmless only after all ranks of the node have left MPI_Init, or if they
    are to end anyway.
    """
    for path in _mapped_segments(pid):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_dead_segments(job_id: str, *, shm: str = _SHM) -> None:
    """Remove the shared memory of this user's dead ranks of a job, whichever its step.

    Not collective. Other steps of the job may be alive, or start right now: what a living process
    has open or mapped is left alone.

    Parameters
    ----------
    job_id
        Slurm's number of the job.
    shm
        Where shared memory is.
    """
    for path in _own_segments(shm):
        if _is_of_job(path.name, job_id):
            _remove_if_dead(path)


def remove_dead_segments_since(begun: float, *, shm: str = _SHM) -> None:
    """Remove shared memory that this user's dead ranks created since `begun`.

    Not collective. As with `remove_dead_segments`, what a living process has is left alone.

    Parameters
    ----------
    begun
        Seconds since the epoch, before the first of these ranks started.
    shm
        Where shared memory is.
    """
    for path in _own_segments(shm):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= begun:
                _remove_if_dead(path)


def remove_dead_segments_of_step(*, shm: str = _SHM, step_age_s: float | None = None) -> None:
    """Remove what an earlier incarnation of this very step has left. Before MPI_Init.

    Not collective, but every rank of the node calls it: none of them goes on before it is gone.
    What is younger than the step can be of a rank that was quicker, and is left alone, as is all
    if the age of the step cannot be found out.

    Parameters
    ----------
    shm
        Where shared memory is.
    step_age_s
        Seconds since this step began on this node; None finds it out.
    """
    job_id, step = environ.variable("SLURM_JOB_ID"), environ.variable("SLURM_STEP_ID")
    if job_id is None or step is None:
        return
    wanted = f"{_hash(f'{job_id}.{step}'):x}"
    found = [path for path in _own_segments(shm) if _hash_of(path.name) == wanted]
    if not found:
        return
    age_s = _step_age_s() if step_age_s is None else step_age_s
    if age_s is None:
        return
    for path in found:
        with contextlib.suppress(OSError):
            _remove_if_older(path, age_s + _MARGIN_S)


def _remove_if_dead(path: Path) -> None:
    with contextlib.suppress(OSError):
        stat = path.stat()
        # Between open() and mmap() it is open, so open files are looked at before mapped ones.
        if not _is_open(stat.st_dev, stat.st_ino) and not _is_mapped(path):
            path.unlink()


def _remove_if_older(path: Path, age_s: float) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # One rank after the other: the rank that has the lock and still finds this very file under
        # its name is the only one to remove it, so none removes a new file of the same name.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        mine = os.fstat(descriptor)
        # The time of the last change stays that of ftruncate(): what mmap() writes is no change.
        is_old = time.time() - mine.st_mtime > age_s
        if is_old and os.path.samestat(mine, path.stat()) and not _is_mapped(path):
            path.unlink()
    finally:
        os.close(descriptor)


def _own_segments(shm: str) -> list[Path]:
    """Return MPICH's shared memory that belongs to this user."""
    found = []
    with contextlib.suppress(OSError), os.scandir(shm) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if _SEGMENT.fullmatch(entry.name) and stat.st_uid == os.getuid():
                    found.append(Path(entry.path))
    return found


def _is_of_job(name: str, job_id: str) -> bool:
    begin, wanted = _hash(f"{job_id}."), _hash_of(name)
    return any(f"{_hash(str(step), begin):x}" == wanted for step in range(_MOST_STEPS))


def _hash_of(name: str) -> str:
    match = _SEGMENT.fullmatch(name)
    return "" if match is None else match[1]


def _hash(text: str, begin: int = _FNV_BASIS) -> int:
    value = begin
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


def _mapped_segments(pid: int | str) -> set[str]:
    """Return the paths of MPICH's shared memory that a process has mapped, and that still exist."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        # It is gone, or another user's.
        return set()
    paths = {line[line.index("/") :] for line in lines if "/mpich_" in line}
    return {path for path in paths if _SEGMENT.fullmatch(os.path.basename(path))}


def _is_mapped(path: Path) -> bool:
    return any(str(path) in _mapped_segments(pid) for pid in _pids())


def _is_open(device: int, inode: int) -> bool:
    for pid in _pids():
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    if (stat.st_dev, stat.st_ino) == (device, inode):
                        return True
    return False


def _pids() -> Iterator[str]:
    return (name for name in os.listdir("/proc") if name.isdigit())


def _step_age_s() -> float | None:
    """Return the seconds since Slurm's daemon of this step began; None if it cannot be seen."""
    pid = os.getpid()
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        command, _, rest = stat.rpartition(")")
        fields = rest.split()
        if command.partition("(")[2].startswith(_STEP_DAEMON):
            began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
            return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
        pid = int(fields[1])
    return None
