"""The processes of a trial, wherever on this machine they run, also inside virtual nodes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpctrain.testing.chaos.injector import FORKED, process_name, role_of, trial_prefix

_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class TrialProcess:
    """A process that has the trial's folder in its environment."""

    pid: int
    """On the host."""
    role: str
    """``rank-0``, ``executor``, ``agent``, ``driver``, ...: see `role_of`."""
    command: str

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass


def find_processes(trial: Path, *, script: str, local: bool) -> list[TrialProcess]:
    """Return the living processes of a trial. Not collective.

    Parameters
    ----------
    trial
        Its folder.
    script
        Path of the script, as on the command line.
    local
        Whether the executor is the process of the script.
    """
    mark = os.fsencode(trial)
    found: dict[int, tuple[str, str, int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
            if mark not in environ:
                continue
            argv = os.fsdecode(Path(entry.path, "cmdline").read_bytes()).split("\0")[:-1]
            stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        pairs = (os.fsdecode(line).partition("=") for line in environ.split(b"\0"))
        role = role_of(argv, {name: value for name, _, value in pairs}, script)
        if role == "other" and "hpctrain.worker.main" in argv[1:4]:
            role = _forked_role(trial, entry.path)
        # A zombie (Z) is dead.
        if argv and stat[0] not in "ZX":
            found[int(entry.name)] = (role, " ".join(argv).strip(), int(stat[1]))
    return [
        TrialProcess(pid=pid, role=_told_apart(pid, found, local=local), command=command)
        for pid, (_, command, _) in found.items()
    ]


def await_end(trial: Path, *, script: str, timeout_s: float) -> list[TrialProcess]:
    """Wait until no process of a trial is left; return those that are after all. Not collective."""
    deadline = time.monotonic() + timeout_s
    while left := find_processes(trial, script=script, local=True):
        if time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)
    return []


def _forked_role(trial: Path, proc: str) -> str:
    try:
        return (trial / FORKED / process_name(proc)).read_text(encoding="utf-8") or "other"
    except OSError:
        return "other"


def _open_paths(pid: int) -> list[str]:
    found, folder = [], f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                found.append(os.readlink(f"{folder}/{name}"))
    return found


def _told_apart(pid: int, found: dict[int, tuple[str, str, int]], *, local: bool) -> str:
    role, _, parent = found[pid]
    if role == "driver" and local:
        return "executor"
    if role == "template":
        # What it forks has its command, and holds a run directory open.
        prefix = next(filter(None, map(trial_prefix, _open_paths(pid))), "")
        return f"{prefix}executor" if prefix else role
    if role == "job":
        # The executor is a fork of the supervisor.
        return "executor" if found.get(parent, ("",))[0] == "job" else "supervisor"
    return role
