"""`NodeMeter`: what the ranks of this node use of its CPUs, memory and GPUs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from hpctrain.control.cgroups import read_text
from hpctrain.control.memory import MemoryCgroup, MemoryWatch

if TYPE_CHECKING:
    from hpctrain.control.nvml import GpuMeter

# Of NVIDIA's driver; where it is missing there is no GPU, and its library is not looked for.
_DEVICE = "/dev/nvidiactl"
# Executors ask for heartbeats every two seconds: one that asks again sooner gets the last answer.
_INTERVAL_S = 1.0
_MIB = 2**20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TOTAL_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class NodeMeter:
    """Measures the processes that a `MemoryWatch` watches, in some ten reads of small files.

    Where Slurm counts the job in a cgroup, version 2, all processes of the job are in the figures,
    data loaders too; elsewhere the ranks alone.

    Parameters
    ----------
    watch
        The ranks of this node.
    gpus
        The GPUs of this node; None where there are none to look at.
    """

    def __init__(self, watch: MemoryWatch, *, gpus: GpuMeter | None = None) -> None:
        self._watch = watch
        self._gpus = gpus
        self._pids: list[int] = []
        self._group: MemoryCgroup | None = None
        self._job = ""
        self._limit: tuple[str, int] | None = None
        self._cpus = 0
        self._used_s: float | None = None
        self._read_at = 0.0
        self._last: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Return what the ranks use now; empty while there are none. Not collective.

        ``cpus``: cores that they may run on. ``cpu``: how many of them were busy on average since
        the last call, null at first. ``memory``: MiB in use. ``memory_limit``: MiB at which the
        kernel ends one of them. ``gpus``: percent busy, MiB in use and MiB there are, of each GPU.
        """
        now = time.monotonic()
        if now - self._read_at < _INTERVAL_S:
            return self._last
        pids = [pid for pid in self._watch.pids if pid > 0]
        if pids != self._pids:
            self._look_at(pids)
        if not pids:
            self._last = {}
            return self._last
        used_s = self._cpu_seconds()
        cpu = None
        if self._used_s is not None and used_s is not None and used_s >= self._used_s:
            cpu = round((used_s - self._used_s) / (now - self._read_at), 1)
        self._used_s, self._read_at = used_s, now
        memory, limit = self._memory()
        self._last = {
            "cpus": self._cpus,
            "cpu": cpu,
            "memory": memory // _MIB,
            "memory_limit": limit // _MIB,
            "gpus": [] if self._gpus is None else self._gpus.read(),
        }
        return self._last

    def _look_at(self, pids: list[int]) -> None:
        self._pids, self._used_s = pids, None
        self._group, self._job, self._limit = None, "", None
        cpus: set[int] = set()
        for pid in pids:
            try:
                cpus |= os.sched_getaffinity(pid)
            except OSError:
                # It has just ended.
                continue
        self._cpus = len(cpus)
        if pids and (group := MemoryCgroup.of(pids[0])) is not None:
            self._group, self._limit = group, group.lowest_limit()
            jobs = [d for d in group.directories if os.path.basename(d).startswith("job_")]
            self._job = jobs[-1] if jobs else ""

    def _cpu_seconds(self) -> float | None:
        """Return the seconds of CPU that were used so far; None if that is not known."""
        if self._job:
            for line in read_text(f"{self._job}/cpu.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == "usage_usec":
                    return int(value) / 1e6
        ticks = 0
        for pid in self._pids:
            # man 5 proc: utime and stime, the fields 14 and 15; the name may have blanks.
            fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if len(fields) < 13:
                return None
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS_PER_S

    def _memory(self) -> tuple[int, int]:
        """Return the bytes in use, and the bytes that there are."""
        if self._group is not None and self._limit is not None:
            directory, limit = self._limit
            room = self._group.room(directory)
            if room is not None:
                return limit - room, limit
        return self._watch.resident_bytes, _TOTAL_BYTES


def gpus_here() -> GpuMeter | None:
    """Return what looks at the GPUs of this machine; None without NVIDIA's driver.

    Not collective.
    """
    if not os.path.exists(_DEVICE):
        return None
    # It needs ctypes, which no other part of an agent imports.
    from hpctrain.control.nvml import GpuMeter

    return GpuMeter()
