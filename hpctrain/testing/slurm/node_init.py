"""Process 1 of a node: makes the namespaces look like a machine, then reaps orphans for ever.

`namespaces.boot` runs this file as a script in fresh namespaces, without site-packages and
without the rest of hpctrain, so it imports only the standard library. It says "ready" on
stdout; whatever goes wrong before is a traceback in the log of the node, and the end of the node.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
from pathlib import Path


def main() -> None:
    """Become a node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--identity", type=Path, required=True)
    parser.add_argument("--hosts", type=Path, required=True)
    parser.add_argument("--resolver", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--memory-cgroups", type=Path, help="where to mount version 1")
    parser.add_argument("--tmp", type=Path, help="where to prepare a private /tmp")
    parser.add_argument("--shared", type=Path, action="append", default=[])
    options = parser.parse_args()

    write_identity(options.identity)
    socket.sethostname(options.name)
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", "/dev/shm")
    mount("--bind", str(options.hosts), "/etc/hosts")
    if Path("/etc/resolv.conf").exists():
        mount("--bind", str(options.resolver), "/etc/resolv.conf")
    # The old mount of sysfs would show the network interfaces of the host.
    mount("-t", "sysfs", "sysfs", "/sys")
    if options.memory_cgroups is not None:
        mount("-t", "tmpfs", "cgroup", str(options.memory_cgroups.parent))
        options.memory_cgroups.mkdir()
        mount("-t", "cgroup", "-o", "memory", "cgroup", str(options.memory_cgroups))
    if options.tmp is not None:
        hide_tmp(options.tmp, state_dir=options.state_dir, shared=options.shared)
    os.chdir("/")
    os.write(1, b"ready\n")
    reap_for_ever()


def write_identity(path: Path) -> None:
    """Write down this process as the host sees it: /proc is still the host's."""
    pid = os.readlink("/proc/self")
    start_ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    path.write_text(f"{pid} {start_ticks}\n")


def mount(*arguments: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *arguments], check=True)


def hide_tmp(staging: Path, *, state_dir: Path, shared: list[Path]) -> None:
    """Put an empty tmpfs over /tmp, in which the state dir and the shared dirs are still seen.

    It is prepared elsewhere, because what is below the old /tmp cannot be reached afterwards.
    """
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", str(staging))
    for directory in (state_dir, *shared):
        if directory.is_relative_to("/tmp"):
            target = staging / directory.relative_to("/tmp")
            target.mkdir(parents=True, exist_ok=True)
            mount("--bind", str(directory), str(target))
    mount("--move", str(staging), "/tmp")


def reap_for_ever() -> None:
    """Wait for every process that ends without a parent, as process 1 must."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        # One signal may stand for several children.
        while reap_one():
            pass


def reap_one() -> bool:
    """Return whether there was a dead child."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return pid != 0


if __name__ == "__main__":
    main()
