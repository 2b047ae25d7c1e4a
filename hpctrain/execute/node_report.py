"""What a node reports of itself before its ranks are used."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

from hpctrain.own_files import create_file

_PROBE_BYTES = 4096


def describe_node(tmp: str) -> dict[str, Any]:
    """Return the clock, free space and devices of this machine. Not collective.

    Nothing in it can hang. Space is in bytes, and None where there is no such directory; the time
    is that of ``time.time``.

    Parameters
    ----------
    tmp
        Directory for temporary files.
    """
    return {
        "time": time.time(),
        "tmp": tmp,
        "tmp_free": _free_bytes(tmp),
        "shm_free": _free_bytes("/dev/shm"),
        "gpus": _count_gpus(),
    }


def examine_storage(run_dir: str, *, node: str) -> dict[str, Any]:
    """Return whether this machine can write into the run directory, and what is free there.

    Not collective. Hangs where the file system hangs.

    Parameters
    ----------
    run_dir
        The run directory, which exists.
    node
        Name of this machine.
    """
    probe = f"{run_dir}/.health-{node}.{os.urandom(8).hex()}"
    problem = ""
    try:
        # Many file systems refuse what does not fit, or is not allowed, only at the first byte.
        descriptor = create_file(probe, mode=0o600)
        try:
            os.write(descriptor, bytes(_PROBE_BYTES))
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"storage": run_dir, "problem": "", "storage_free": 0}
        problem = error.strerror or str(error)
    return {"storage": run_dir, "problem": problem, "storage_free": _free_bytes(run_dir)}


def _free_bytes(directory: str) -> int | None:
    try:
        space = os.statvfs(directory)
    except OSError:
        return None
    # A file system without room for another file is full as well.
    return 0 if space.f_files and not space.f_favail else space.f_bavail * space.f_frsize


def _count_gpus() -> int:
    # NVIDIA's driver makes a file for each; those of other vendors are not counted.
    return sum(name[:6] == "nvidia" and name[6:].isdigit() for name in os.listdir("/dev"))
