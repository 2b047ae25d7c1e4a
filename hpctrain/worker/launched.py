"""`Launched`: the state that a launcher has started a process in, as its node's kernel shows it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpctrain import environ

_LIMITS = tuple(
    number
    for name, number in sorted(vars(resource).items())
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
)
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_FIRST_LINES_BYTES = 512
# Of /proc/PID/status: what else fork() would take from another process than the launcher.
_SAME_IN_STATUS = ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")
# man 2 ioprio_get
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31, "ppc64le": 274}.get(os.uname().machine)
_IOPRIO_WHO_PROCESS = 1


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What a process has inherited."""

    pid: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """As it was when the process was started, but for the code of `hpctrain.worker.fork_client`."""
    cwd: str
    umask: int
    limits: Mapping[int, tuple[int, int]]
    """Soft and hard resource limits, by their number."""
    affinity: frozenset[int]
    nice: int
    oom_score_adj: int
    ignored: frozenset[int]
    """Signals."""
    blocked: frozenset[int]
    cgroup: str
    """Its line of each hierarchy."""
    domain: Mapping[str, str]
    """Its namespaces, user, groups, privileges, memory policy and scheduling, by what they are
    called."""


def read_launched(pid: int) -> Launched:
    """Return the state that a process of this user was started in. Not collective.

    Raises
    ------
    OSError
        If the process is gone, or this one may not look at it.
    ValueError
        If this kernel does not show it as others do.
    """
    proc = Path(f"/proc/{pid}")
    status = _fields((proc / "status").read_text(errors="replace"))
    variables = (word.partition("=") for word in _words((proc / "environ").read_bytes()))
    domain = {f"{name} namespace": os.readlink(proc / "ns" / name) for name in _namespaces(proc)}
    domain |= {name: status[name] for name in _SAME_IN_STATUS if name in status}
    domain |= _memory_policy(proc)
    domain |= _scheduling(pid)
    return Launched(
        pid=pid,
        argv=tuple(_words((proc / "cmdline").read_bytes())),
        environment={
            name: value for name, found, value in variables if found and name != environ.FORK_CLIENT
        },
        cwd=os.readlink(proc / "cwd"),
        umask=int(status["Umask"], 8),
        limits={number: resource.prlimit(pid, number) for number in _LIMITS},
        affinity=frozenset(os.sched_getaffinity(pid)),
        nice=os.getpriority(os.PRIO_PROCESS, pid),
        oom_score_adj=int((proc / "oom_score_adj").read_text()),
        ignored=_signals(status["SigIgn"]),
        blocked=_signals(status["SigBlk"]),
        cgroup=(proc / "cgroup").read_text(errors="replace"),
        domain=domain,
    )


def apply_launched(launched: Launched) -> str:
    """Give this process what another one was started with; return why that cannot be, or nothing.

    Not collective. Environment, arguments and signals are not changed yet.
    """
    steps: list[tuple[str, Callable[[], None]]] = [
        ("the working directory", partial(os.chdir, launched.cwd)),
        ("the CPU affinity", partial(_set_affinity, launched.affinity)),
        ("the nice value", partial(_set_nice, launched.nice)),
        ("oom_score_adj", partial(_set_oom_score, launched.oom_score_adj)),
        *(
            (f"resource limit {number}", partial(_set_limit, number, value))
            for number, value in launched.limits.items()
        ),
    ]
    for what, step in steps:
        try:
            step()
        except (OSError, ValueError) as error:
            return f"{what} that the launcher gives ranks cannot be set: {error}"
    os.umask(launched.umask)
    return ""


def apply_signals(launched: Launched) -> None:
    """Ignore and block the signals that a new interpreter would. Not collective."""
    # Python ignores these two itself.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        is_ignored = number in launched.ignored
        if is_ignored != (signal.getsignal(number) is signal.SIG_IGN):
            signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    if signal.SIGINT not in launched.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, launched.blocked)


def _set_affinity(cpus: frozenset[int]) -> None:
    if os.sched_getaffinity(0) != cpus:
        os.sched_setaffinity(0, cpus)
        if os.sched_getaffinity(0) != cpus:
            raise ValueError("some of its CPUs are not in the cpuset of the fork server")


def _set_nice(nice: int) -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) != nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def _set_oom_score(score: int) -> None:
    path = Path("/proc/self/oom_score_adj")
    if int(path.read_text()) != score:
        path.write_text(str(score))


def _set_limit(number: int, value: tuple[int, int]) -> None:
    if resource.getrlimit(number) != value:
        resource.setrlimit(number, value)


def _namespaces(proc: Path) -> list[str]:
    # A kernel may be built without some.
    return [name for name in _NAMESPACES if os.path.lexists(proc / "ns" / name)]


def _memory_policy(proc: Path) -> dict[str, str]:
    """Return what ``srun --mem-bind`` and ``numactl`` set, which nothing else shows."""
    try:
        # The first mapping has none of its own. Of a large process all would take a while.
        with open(proc / "numa_maps", "rb", buffering=0) as file:
            words = file.read(_FIRST_LINES_BYTES).split()
    except OSError:
        # A kernel without NUMA has none.
        return {}
    return {"memory policy": os.fsdecode(words[1])} if len(words) > 1 else {}


def _scheduling(pid: int) -> dict[str, str]:
    """Return what ``chrt``, ``ionice`` and ``setarch`` set."""
    priority = os.sched_getparam(pid).sched_priority
    found = {"scheduling policy": f"{os.sched_getscheduler(pid)}, priority {priority}"}
    if _IOPRIO_GET is not None:
        # What shows the commands of ranks has imported it.
        import ctypes

        io = ctypes.CDLL(None).syscall(_IOPRIO_GET, _IOPRIO_WHO_PROCESS, pid)
        found["I/O priority"] = _describe_io_priority(io)
    # Where Yama forbids to trace others it cannot be read.
    with suppress(OSError):
        found["personality"] = Path(f"/proc/{pid}/personality").read_text().strip()
    return found


def _describe_io_priority(number: int) -> str:
    """Return the class, and the level in it: without a class the kernel has various levels."""
    of_class, level = number >> 13, number & 0x1FFF
    return f"{of_class}, {level}" if of_class else "none"


def _fields(status: str) -> dict[str, str]:
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines}


def _signals(mask: str) -> frozenset[int]:
    bits = int(mask, 16)
    return frozenset(number for number in signal.valid_signals() if bits >> (number - 1) & 1)


def _words(content: bytes) -> list[str]:
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]
