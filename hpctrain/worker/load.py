"""What holds up the processes of a node: throttling, steal, waits for a CPU, pressure, slow clocks.

Read only where a node is slow. Each source may be missing: another kernel, a container.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.control.cgroups import find_cgroup, read_text

_LEAST_SHARE = 0.05
_LEAST_PRESSURE = 0.1
_LEAST_CLOCK = 0.75


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What the kernel has counted so far, in seconds, by what it is called here."""

    at: float
    """Of ``time.monotonic``."""
    seconds: Mapping[str, float]
    """What is not listed is not counted here."""
    clock: float | None = None
    """Highest clock of the CPUs of this process now, as a share of the highest that it can have."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What held a rank up for a moment; each is a share of the time."""

    throttled: float | None = None
    """Its cgroup, or one around it, has used up its CPU quota."""
    steal: float | None = None
    """The hypervisor gave the CPUs of the node to others."""
    waits_for_cpu: float | None = None
    """A thread was ready, and had no CPU: others had it, or a quota was used up; of the worst."""
    memory: float | None = None
    """All processes waited for memory that had to be reclaimed, or read from swap."""
    io: float | None = None
    """Some process waited for a disk or a filesystem."""
    clock: float | None = None
    """Highest clock of its CPUs, of the highest that they can have."""

    @staticmethod
    def between(before: Counters, after: Counters) -> Load:
        """Return the load between two moments. Pure; not collective."""
        elapsed = max(after.at - before.at, 1e-6)

        def share(name: str) -> float | None:
            if name not in before.seconds or name not in after.seconds:
                return None
            return min(1.0, max(0.0, (after.seconds[name] - before.seconds[name]) / elapsed))

        threads = [
            s for n in after.seconds if n.startswith("task ") and (s := share(n)) is not None
        ]
        return Load(
            throttled=share("throttled"),
            steal=share("steal"),
            waits_for_cpu=max(threads, default=None),
            memory=share("memory"),
            io=share("io"),
            clock=after.clock,
        )

    def to_json(self) -> dict[str, float | None]:
        """Return a JSON object."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Load:
        """Return what `to_json` gave."""
        return Load(**content)


def explain_load(load: Load, other: Load | None = None) -> tuple[str, ...]:
    """Return what holds a rank up, in words; empty if nothing of it can be seen. Pure.

    Not collective.

    Parameters
    ----------
    load
        Of a rank that is slow.
    other
        Of one that is not. What holds it up as much is not the reason.
    """
    other = other or Load()
    said: list[str] = []
    for name, least, text in (
        ("throttled", _LEAST_SHARE, "its cgroup is throttled {} of the time (CPU quota)"),
        ("steal", _LEAST_SHARE, "its hypervisor gives {} of its CPUs' time to others (steal)"),
        ("waits_for_cpu", _LEAST_PRESSURE, "its threads wait for a CPU {} of the time"),
        ("memory", _LEAST_SHARE, "its processes wait for memory {} of the time (memory pressure)"),
        ("io", _LEAST_PRESSURE, "its processes wait for a disk {} of the time (I/O pressure)"),
    ):
        share, usual = getattr(load, name) or 0.0, getattr(other, name) or 0.0
        if name == "waits_for_cpu" and said:
            # An effect of the quota, or of the hypervisor.
            continue
        if share >= least and share > 2 * usual:
            said.append(text.format(f"{share:.0%}"))
    clock, usual = load.clock or 1.0, other.clock or 1.0
    if clock <= _LEAST_CLOCK and clock < 0.9 * usual:
        said.append(f"its CPU clock is at {clock:.0%} of its highest")
    return tuple(said)


def measure_load(*, root: str = "/", pid: int | None = None) -> Counters:
    """Return what the kernel has counted so far. Not collective.

    Parameters
    ----------
    root
        Below which ``proc`` and ``sys`` are.
    pid
        The process; None is this one.
    """
    pid = os.getpid() if pid is None else pid
    seconds: dict[str, float] = {}
    with suppress(ValueError, IndexError):
        # man 5 proc_stat: user, nice, system, idle, iowait, irq, softirq, steal, in clock ticks.
        fields = read_text(f"{root}proc/stat").splitlines()[0].split()
        num_cpus = os.cpu_count() or 1
        seconds["steal"] = int(fields[8]) / os.sysconf("SC_CLK_TCK") / num_cpus
    for name, kind in (("memory", "full"), ("io", "some")):
        with suppress(ValueError, IndexError):
            seconds[name] = _pressure(read_text(f"{root}proc/pressure/{name}"), kind)
    throttled = [s for d in _cpu_groups(root, pid) if (s := _throttled(d)) is not None]
    if throttled:
        # Of the groups around it, one that throttles is enough.
        seconds["throttled"] = sum(throttled)
    for path in glob.glob(f"{root}proc/{pid}/task/*/schedstat"):
        with suppress(ValueError, IndexError):
            # Documentation/scheduler/sched-stats.rst: on a CPU, waiting for one, in nanoseconds.
            seconds[f"task {path.split('/')[-2]}"] = int(read_text(path).split()[1]) / 1e9
    return Counters(at=time.monotonic(), seconds=seconds, clock=_clock(root, _cpus(pid)))


def _cpus(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def _pressure(text: str, kind: str) -> float:
    """Return the total of a line such as ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12``."""
    (line,) = (line for line in text.splitlines() if line.startswith(kind))
    return int(line.rpartition("total=")[2]) / 1e6


def _throttled(directory: str) -> float | None:
    with suppress(ValueError):
        for line in read_text(f"{directory}/cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            # Of version 2 in microseconds, of version 1 in nanoseconds.
            if name in ("throttled_usec", "throttled_time"):
                return int(value) / (1e6 if name == "throttled_usec" else 1e9)
    return None


def _cpu_groups(root: str, pid: int) -> list[str]:
    """Return the CPU cgroup of a process and those around it, as far as they are mounted here."""
    with suppress(ValueError, IndexError):
        if (found := find_cgroup(pid, "cpu", proc=f"{root}proc")) is not None:
            # In a container its own group may be hidden, but not the one that is mounted.
            return [f"{root}{d.lstrip('/')}" for d in found.directories or [found.mount]]
    return []


def _clock(root: str, cpus: Iterable[int]) -> float | None:
    shares = []
    for cpu in cpus:
        directory = f"{root}sys/devices/system/cpu/cpu{cpu}/cpufreq"
        with suppress(ValueError, ZeroDivisionError):
            now = int(read_text(f"{directory}/scaling_cur_freq"))
            shares.append(now / int(read_text(f"{directory}/cpuinfo_max_freq")))
    # Of CPUs that are idle the clock says nothing: of those of a rank, one is busy.
    return max(shares, default=None)
