"""The memory of this node's ranks, as cgroups count it: its limit, and what the kernel killed.

Never the memory of the node: a job may use what Slurm gave it, however much is free beside it.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from hpctrain.control.cgroups import find_cgroup, read_text
from hpctrain.control.local_socket import peer_pid

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_INTERVAL_S = 2.0
# What cgroup v1 shows where there is no limit: 2^63 - 1, rounded down to a page.
_NO_LIMIT = 2**62


class MemoryCgroup:
    """The memory cgroup of a process, and those around it.

    Parameters
    ----------
    directories
        The group's own, then those around it, outermost last.
    version
        1 or 2.
    """

    def __init__(self, directories: list[str], *, version: int) -> None:
        self.directories = directories
        self.version = version
        names = {
            1: ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            2: ("memory.events", "memory.max", "memory.peak"),
        }
        self._events, self._limit, self._peak = names[version]
        # The counts of version 1 have those of the groups inside only by these names.
        self._usage, self._cache, self._shmem = {
            1: ("memory.usage_in_bytes", "total_cache", "total_shmem"),
            2: ("memory.current", "file", "shmem"),
        }[version]

    @classmethod
    def of(cls, pid: int, *, proc: str = "/proc") -> MemoryCgroup | None:
        """Return the group that a process is in; None where there is none or it is not shown.

        Not collective.

        Parameters
        ----------
        pid
            The process.
        proc
            Where the proc file system is.
        """
        found = find_cgroup(pid, "memory", proc=proc)
        if found is None or not found.directories:
            return None
        return cls(found.directories, version=found.version)

    def kills(self, directory: str) -> int | None:
        """Return how many processes the kernel killed in a group; None where it is not counted.

        Version 2 counts those of the groups inside as well, version 1 does not.
        """
        for line in read_text(f"{directory}/{self._events}").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return None

    def lowest_limit(self) -> tuple[str, int] | None:
        """Return the group that limits the process most, and its limit in bytes, if there is one.

        Of several with the same limit it is the outermost, which has the most inside.
        """
        lowest = None
        for directory in self.directories:
            text = read_text(f"{directory}/{self._limit}").strip()
            limit = int(text) if text.isdigit() else _NO_LIMIT
            if limit < _NO_LIMIT and (lowest is None or limit <= lowest[1]):
                lowest = directory, limit
        return lowest

    def room(self, directory: str) -> int | None:
        """Return the bytes that a group may still use; None where it has no limit.

        What the page cache holds counts as free.
        """
        limit, usage = (
            read_text(f"{directory}/{name}").strip() for name in (self._limit, self._usage)
        )
        if not limit.isdigit() or int(limit) >= _NO_LIMIT or not usage.isdigit():
            return None
        lines = read_text(f"{directory}/memory.stat").splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
        # The cache includes tmpfs, which cannot be dropped.
        cached = counts.get(self._cache, 0) - counts.get(self._shmem, 0)
        return max(0, int(limit) - int(usage) + cached)

    def peak(self, directory: str) -> int | None:
        """Return the most that a group ever used, in bytes; None where it is not counted."""
        text = read_text(f"{directory}/{self._peak}").strip()
        return int(text) if text.isdigit() else None


def free_bytes() -> int:
    """Return how much memory this process may still use: what is free, or its cgroups leave it.

    Not collective. What the page cache holds counts as free.
    """
    lines = read_text("/proc/meminfo").splitlines()
    (available,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    group = MemoryCgroup.of(os.getpid())
    rooms = [] if group is None else [group.room(directory) for directory in group.directories]
    return min([int(available) * 1024, *(room for room in rooms if room is not None)])


class _Watched:
    """A process that is watched."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.group = MemoryCgroup.of(pid)
        self.limit = None if self.group is None else self.group.lowest_limit()
        self.resident = 0
        self.seen_at = 0.0


class MemoryWatch:
    """Watches processes of this node by what they are known by: any value that can be a key."""

    def __init__(self) -> None:
        self._watched: dict[object, _Watched] = {}
        self._aside: dict[object, _Watched] = {}
        self._counted: dict[str, int] = {}
        self._sharing: dict[str, int] = {}
        self._sampled_at = 0.0

    @property
    def pids(self) -> list[int]:
        """The processes that are watched."""
        return [watched.pid for watched in self._watched.values()]

    @property
    def resident_bytes(self) -> int:
        """What the processes had in memory when `sample` looked last."""
        return sum(watched.resident for watched in self._watched.values())

    def add(self, key: object, sock: socket.socket) -> None:
        """Begin to watch the process at the other end of a unix socket."""
        # The pid is 0 if it has none in our PID namespace.
        self._watch(key, _Watched(peer_pid(sock)))

    def set_aside(self, key: object) -> None:
        """Do not count a process until `take_back`: it does nothing yet."""
        watched = self._aside[key] = self._watched.pop(key)
        if watched.limit is not None:
            self._sharing[watched.limit[0]] -= 1

    def take_back(self, key: object) -> None:
        """Undo `set_aside`."""
        self._watch(key, self._aside.pop(key))

    def _watch(self, key: object, watched: _Watched) -> None:
        if watched.limit is not None:
            group = watched.limit[0]
            # Once all have ended, those that come are another attempt's.
            others = any(
                w.limit is not None and w.limit[0] == group for w in self._watched.values()
            )
            self._sharing[group] = 1 + (self._sharing[group] if others else 0)
        self._watched[key] = watched
        if watched.group is not None:
            for directory in watched.group.directories:
                if directory not in self._counted:
                    self._counted[directory] = watched.group.kills(directory) or 0

    def sample(self) -> None:
        """Note how large each process is, if that was not done just now."""
        now = time.monotonic()
        if now - self._sampled_at < _SAMPLE_INTERVAL_S:
            return
        self._sampled_at = now
        for watched in self._watched.values():
            # man 5 proc: pages in all, pages that are resident. All zero once it is ending.
            sizes = read_text(f"/proc/{watched.pid}/statm").split()
            if len(sizes) > 1 and int(sizes[1]):
                watched.resident, watched.seen_at = int(sizes[1]) * _PAGE_BYTES, now

    def remove(self, key: object) -> dict[str, Any] | None:
        """Stop watching a process that has ended; return what is known of its memory.

        The kills of a group are reported once: to the first that ended after them. None if nothing
        counts them here. Sizes are in bytes, times in seconds.
        """
        self._aside.pop(key, None)
        watched = self._watched.pop(key, None)
        if watched is None or watched.group is None:
            return None
        kills = self._new_kills(watched.group)
        if kills is None:
            return None
        found: dict[str, Any] = {"kills": kills}
        if watched.limit is not None:
            group, limit = watched.limit
            found.update(group=group, limit=limit, peak=watched.group.peak(group))
            found.update(sharing=self._sharing[group])
        if watched.resident:
            found.update(resident=watched.resident, age_s=time.monotonic() - watched.seen_at)
        return found

    def _new_kills(self, group: MemoryCgroup) -> int | None:
        for directory in group.directories:
            # The innermost may be gone already, with its last process.
            kills = group.kills(directory)
            if kills is not None:
                new = kills - self._counted[directory]
                self._counted[directory] = kills
                return new
            if group.version == 1:
                return None
        return None
