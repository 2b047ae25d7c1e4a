"""Where the kernel counts a process: its cgroup, and those around it, as they are mounted here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple


# Not a dataclass: their module costs an agent a fifth of its imports.
class Cgroup(NamedTuple):
    """The cgroup of a process in the hierarchy of one controller."""

    version: int
    """1 or 2."""
    mount: str
    """Where the hierarchy is mounted."""
    directories: list[str]
    """The group's own, then those around it, outermost last. Empty where it is not shown."""


def find_cgroup(pid: int, controller: str, *, proc: str = "/proc") -> Cgroup | None:
    """Return the group in which a controller counts a process; None where none is mounted.

    Not collective.

    Parameters
    ----------
    pid
        The process.
    controller
        What is counted, such as ``memory`` or ``cpu``.
    proc
        Where the proc file system is.

    Raises
    ------
    ValueError, IndexError
        If a line is not as in ``man 7 cgroups`` and ``man 5 proc``.
    """
    groups = groups_of(read_text(f"{proc}/{pid}/cgroup"))
    # Where both versions are mounted, a controller is in one of them alone.
    found = next((names for names in groups if controller in names), ())
    return find_mounted(found, groups[found], proc=proc) if found in groups else None


def groups_of(text: str) -> dict[tuple[str, ...], str]:
    """Return the path of a process in each hierarchy, by its controllers; version 2 has none.

    Pure.

    Parameters
    ----------
    text
        Its ``/proc/PID/cgroup``.

    Raises
    ------
    ValueError
        If a line is not as in ``man 7 cgroups``.

    Examples
    --------
    >>> groups_of("4:cpu,cpuacct:/job_7/step_0" + chr(10) + "0::/job_7")
    {('cpu', 'cpuacct'): '/job_7/step_0', (): '/job_7'}
    """
    lines = (line.split(":", 2) for line in text.splitlines())
    return {tuple(filter(None, names.split(","))): path for _, names, path in lines}


def find_mounted(controllers: Sequence[str], path: str, *, proc: str = "/proc") -> Cgroup | None:
    """Return the group of a path, where its hierarchy is mounted; None where it is not.

    Not collective.

    Parameters
    ----------
    controllers
        Of the hierarchy; empty is version 2.
    path
        In the hierarchy.
    proc
        Where the proc file system is.

    Raises
    ------
    ValueError, IndexError
        If a line is not as in ``man 5 proc``.
    """
    version, kind = (1, "cgroup") if controllers else (2, "cgroup2")
    # The last mount of a place hides the ones before.
    for mount in reversed(read_text(f"{proc}/self/mountinfo").splitlines()):
        before, _, after = mount.partition(" - ")
        root, top = before.split()[3:5]
        if after.split()[0] == kind and set(controllers) <= set(after.split()[2].split(",")):
            return Cgroup(version=version, mount=top, directories=_chain(top, path, root))
    return None


def _chain(top: str, path: str, root: str) -> list[str]:
    """Return the directories of a group and of those around it, up to the mount."""
    # In a container the mount may show only what is below `root`, and the process be elsewhere.
    inside = os.path.relpath(path, root)
    if path.startswith("/..") or inside.startswith(".."):
        return []
    parts = [] if inside == "." else inside.split("/")
    return ["/".join([top, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def read_text(path: str) -> str:
    """Return what a file of the kernel holds; empty where it cannot be read. Not collective."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
