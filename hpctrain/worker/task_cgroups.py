"""Whether a process may run in the cgroup of another task of its step.

Slurm gives each task a cgroup below that of the step, with ``TaskPlugin=task/cgroup`` or
``JobAcctGatherType=jobacct_gather/cgroup``. They are root's, so a fork stays in that of its parent.
As a rule memory and CPUs are limited by the groups of the job and the step, and those of tasks only
count. Then it makes no difference which of them a process is in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from hpctrain.control.cgroups import Cgroup, find_mounted, groups_of, read_text

# Version 1 shows the largest number of pages that can be counted.
_UNLIMITED_BYTES = 2**60
_NUMBER = re.compile(r"(?:^|[\s=])\d+(?=\s|$)")
# Of version 1: they count, or stop, the processes of a group, and limit nothing.
_WITHOUT_LIMITS = frozenset(["cpuacct", "freezer", "perf_event"])
# What they are where nothing is limited: a quota of CPU time, and to kill a group as a whole.
_FLAGS = {"cpu.cfs_quota_us": "-1", "memory.oom.group": "0"}
_OF_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "SLURM_STEP_GPUS")


def explain_cgroup(
    own: str, other: str, *, environment: Mapping[str, str], proc: str = "/proc"
) -> str:
    """Return why a process of one cgroup may not run in another, or nothing. Not collective.

    Parameters
    ----------
    own, other
        Their lines of ``/proc/PID/cgroup``.
    environment
        Of the process.
    proc
        Where the proc file system is.
    """
    try:
        mine, others = groups_of(own), groups_of(other)
        for controllers in {**mine, **others}:
            if mine.get(controllers) == others.get(controllers):
                continue
            if controllers not in mine or controllers not in others:
                return f"only one of them is in a group of {','.join(controllers) or 'version 2'}"
            pair = (
                find_mounted(controllers, groups[controllers], proc=proc)
                for groups in (mine, others)
            )
            if reason := _explain_hierarchy(controllers, *pair, environment=environment):
                return reason
    except (ValueError, IndexError, OSError) as error:
        return f"they cannot be read: {error}"
    return ""


def _explain_hierarchy(
    controllers: tuple[str, ...],
    mine: Cgroup | None,
    other: Cgroup | None,
    *,
    environment: Mapping[str, str],
) -> str:
    # Those with a name have no controller.
    if controllers and all(name in _WITHOUT_LIMITS or "=" in name for name in controllers):
        return ""
    if mine is None or other is None or not (mine.directories and other.directories):
        return "what they limit cannot be seen here"
    if not controllers and any(map(environment.get, _OF_GPUS)):
        # A program of the kernel's decides, which only root can see.
        return "whether they limit GPUs cannot be seen in version 2 of cgroups"
    for directory in sorted({*mine.directories} ^ {*other.directories}):
        for name, value in _limits(directory):
            return f"{name} is {value} in {directory}"
    return _explain_shared(controllers, mine.directories[0], other.directories[0])


def _explain_shared(controllers: tuple[str, ...], mine: str, other: str) -> str:
    """Compare what may be limited, since to use it leaves no less of it, but in the same way."""
    names = [
        *(() if controllers else ("cpuset.cpus.effective", "cpuset.mems.effective")),
        *(("cpuset.cpus", "cpuset.mems") if "cpuset" in controllers else ()),
        *(("devices.list",) if "devices" in controllers else ()),
    ]
    for name in names:
        values = [read_text(f"{directory}/{name}").strip() for directory in (mine, other)]
        if values[0] != values[1]:
            return f"{name} is {values[0]!r} in {mine}, and {values[1]!r} in {other}"
        if name == "devices.list" and not values[0]:
            return f"{mine}/{name} cannot be read"
    return ""


def _limits(directory: str) -> Iterator[tuple[str, str]]:
    """Yield the limits that the processes of a group share."""
    for name in sorted(os.listdir(directory)):
        # Empty where this kernel does not count it.
        value = read_text(f"{directory}/{name}").strip() if _may_limit(name) else ""
        if value and _is_limited(name, value):
            yield name, value


def _may_limit(name: str) -> bool:
    return name.endswith((".max", ".high", "limit_in_bytes", "_device")) or name in _FLAGS


def _is_limited(name: str, value: str) -> bool:
    if name in _FLAGS:
        return value != _FLAGS[name]
    if name.endswith("limit_in_bytes"):
        is_hard = name != "memory.soft_limit_in_bytes"
        return is_hard and value.isdigit() and int(value) < _UNLIMITED_BYTES
    if name.endswith("_device"):
        return name.startswith("blkio.throttle.") and bool(value)
    if name == "cpu.max":
        return not value.startswith("max")
    return _NUMBER.search(value) is not None
