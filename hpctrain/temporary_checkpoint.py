"""Temporary checkpoints, whose names identify their process.

A process that ends removes its own. If it is killed, the agent of its node does, or the executor
where there is no agent. If these are killed too, the next start on that node does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

_PREFIX = "hpctrain-checkpoint-"
_NUM_DIGITS = 16


def temporary_prefix() -> str:
    """Return the prefix of the names of this process's temporary checkpoints. Not collective."""
    return f"{_PREFIX}{temporary_owner()}-"


def temporary_owner() -> str:
    """Return how these names identify this process. Not collective."""
    return f"{os.getpid()}-{_pid_namespace()}"


def remove_temporary_checkpoints(tmp: str, owner: str) -> None:
    """Remove the temporary checkpoints of a rank that is dead, or about to end. Not collective.

    Parameters
    ----------
    tmp
        Its directory for temporary files. Other hosts and containers may share it.
    owner
        What `temporary_owner` returns in its process.
    """
    for path in Path(tmp).glob(f"{_PREFIX}{owner}-*"):
        _remove(path)


def remove_dead_checkpoints(tmp: str) -> None:
    """Remove the temporary checkpoints of this user's dead processes. Not collective.

    Checkpoints of another host, container or boot stay: their processes cannot be checked from
    here.

    Parameters
    ----------
    tmp
        The directory for temporary files.
    """
    name = re.compile(rf"{_PREFIX}([0-9]+)-{_pid_namespace()}-.+")
    # Listed before the processes: each listed name belongs to a process of that time.
    with contextlib.suppress(OSError):
        for found in filter(None, map(name.fullmatch, os.listdir(tmp))):
            if _is_dead(int(found[1])):
                _remove(Path(tmp, found[0]))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.getuid():
            import shutil

            shutil.rmtree(path, ignore_errors=True)


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # Another user's process, which is alive.
        return False
    return False


def _pid_namespace() -> str:
    """Return the name of the namespace in which this process's PID is valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return _unique_name()
    return f"{boot.strip().replace('-', '')[:_NUM_DIGITS]}.{namespace:x}"


@functools.cache
def _unique_name() -> str:
    """Return what stands for the namespace without ``/proc``."""
    return os.urandom(_NUM_DIGITS // 2).hex()
