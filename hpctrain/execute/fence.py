"""`Fence`: which executor of a run may write, also where an older one goes on after a pause.

Each executor, and each ``fit()`` that begins a run, takes the next number: a file ``.executor-N``,
created with O_EXCL, which is atomic on NFS, Lustre and GPFS. A process that takes a number removes
the smaller ones, so that one file is left, whose owner may write. An executor whose host was
suspended, or cut off, finds its file gone, and leaves.

It opens its file before it writes: of a file that is opened NFS asks the server, while it answers a
stat for up to a minute from its cache. A pause between that look and the write itself is not seen;
so checkpoints do not depend on it: an executor that begins an attempt removes what older ones have
staged, and a commit moves just that.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpctrain import environ
from hpctrain.errors import DamagedFileError, SupersededError
from hpctrain.execute.process import process_start_time
from hpctrain.log import log
from hpctrain.rundir.files import may_pass
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_job_id, read_object

_NAME = re.compile(r"\.executor-(\d{1,15})")


class Fence:
    """The number of an executor of a run, and whether another one has a larger one.

    Parameters
    ----------
    paths
        The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.number = _newest(paths)
        """Its number: until one is taken, the last that there was."""

    def take(self, paths: RunPaths) -> None:
        """Take the next number; owners of smaller ones may not write any more. Not collective.

        On a full disk it shares that of its predecessor, and goes on.

        Raises
        ------
        OSError
            If it cannot be created for another reason.
        """
        number = self.number
        try:
            while True:
                number = max(number, _newest(paths)) + 1
                if _create(paths, number):
                    break
        except OSError as error:
            if not may_pass(error):
                raise
            log(f"cannot write {paths.executor(number)}: {error.strerror}")
        else:
            self.number = number

    def holds(self, paths: RunPaths) -> bool:
        """Return whether no process has a larger number. Not collective. One `open` as a rule."""
        try:
            os.close(os.open(paths.executor(self.number), os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            try:
                return _newest(paths) <= self.number
            except OSError:
                return True
        except OSError:
            # Of the filesystem, which does not answer.
            return True
        return True

    def check(self, paths: RunPaths) -> None:
        """Return if no process has a larger number. Not collective.

        Raises
        ------
        SupersededError
            If another executor has taken the run over.
        """
        if not self.holds(paths):
            raise SupersededError(
                f"another executor has taken over run {paths.root.name!r} in {paths.root.parent}: "
                f"number {_newest(paths)}, {_describe(read_owner(paths))}. This one, number "
                f"{self.number}, process {os.getpid()} on {socket.gethostname()}, ends its ranks "
                f"and writes nothing more there. Follow the run: hpctrain attach {paths.root}"
            )

    def check_after(self, paths: RunPaths, *, child: int) -> None:
        """Return if only a child of this process has taken a number since. Not collective.

        Parameters
        ----------
        child
            Its process id; it has ended.

        Raises
        ------
        SupersededError
            If another executor has taken the run over.
        """
        owner = read_owner(paths)
        if (owner.get("host"), owner.get("pid")) != (socket.gethostname(), child):
            self.check(paths)


def _create(paths: RunPaths, number: int) -> bool:
    """Try to take a number, and remove the smaller ones; return whether it is this process's."""
    mark, flags = paths.executor(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(mark, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        # Another executor's; or this one's, where NFS has lost the answer and asked again.
        return False
    with os.fdopen(descriptor, "wb", buffering=0) as file, suppress(OSError):
        file.write(json.dumps(_describe_self()).encode())
    numbers = _numbers(paths)
    if max(numbers, default=number) > number:
        # It was free because the owner of a larger one has removed it.
        mark.unlink(missing_ok=True)
        return False
    for other in numbers:
        if other < number:
            paths.executor(other).unlink(missing_ok=True)
    return True


def read_owner(paths: RunPaths) -> dict[str, Any]:
    """Return ``host``, ``pid``, ``start`` and ``job_id`` of the owner of the largest number.

    Not collective. Empty where that is not known.
    """
    try:
        owner = read_object(paths.executor(_newest(paths)))
    except (OSError, DamagedFileError):
        return {}
    kinds = {"host": str, "pid": int, "start": int}
    job_id = owner.get("job_id")
    if not all(type(owner.get(name)) is kind for name, kind in kinds.items()):
        return {}
    return owner if job_id is None or is_job_id(job_id) else {}


def _describe_self() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "start": process_start_time(pid) or 0,
        "job_id": environ.variable("SLURM_JOB_ID"),
    }


def _describe(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "of which nothing more is known"
    job = "" if owner["job_id"] is None else f", in job {owner['job_id']}"
    return f"process {owner['pid']} on {owner['host']}{job}"


def _newest(paths: RunPaths) -> int:
    return max(_numbers(paths), default=0)


def _numbers(paths: RunPaths) -> list[int]:
    try:
        names = (_NAME.fullmatch(name) for name in os.listdir(paths.root))
    except FileNotFoundError:
        return []
    return [int(name.group(1)) for name in names if name is not None]
