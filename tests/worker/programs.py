"""Programs in the place of ranks, which are forked."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATE = """
    import gc, json, os, resource, signal, stat, sys

    status = open("/proc/self/status").read()
    print(json.dumps({
        "environ": {k: v for k, v in os.environ.items() if k != "_"},
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
        "main": [str(vars(sys.modules["__main__"]).get(name)) for name in (
            "__name__", "__file__", "__package__", "__cached__", "__doc__")],
        "spec": sys.modules["__main__"].__spec__.name,
        "umask": os.umask(0), "nice": os.nice(0), "affinity": sorted(os.sched_getaffinity(0)),
        "oom": open("/proc/self/oom_score_adj").read(),
        "limits": {
            name: resource.getrlimit(number)
            for name, number in vars(resource).items() if name.startswith("RLIMIT")
        },
        "signals": {
            number: str(signal.getsignal(number)).partition(" at ")[0]
            for number in signal.valid_signals()
        },
        "masks": [
            line for line in status.splitlines() if line.startswith(("SigB", "SigI", "SigC"))
        ],
        "stdin": os.readlink("/proc/self/fd/0"),
        "kinds": [stat.S_IFMT(os.fstat(n).st_mode) for n in range(3)],
        "open": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
        "cmdline": open("/proc/self/cmdline").read().rstrip("\\0"),
        "comm": open("/proc/self/comm").read(),
        "buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdin.isatty()],
        "threads": len(os.listdir("/proc/self/task")),
        "collections": [gc.isenabled(), gc.get_threshold()],
        "leads": os.getpgid(0) == os.getpid(),
    }))
    print(os.getpid())
"""


WAITS = """
    import os, signal, subprocess, sys, time

    from hpctrain.worker.parent_death import outlive_parent

    if "unconnected" not in sys.argv:
        # As a rank that is connected to its executor.
        outlive_parent()

    def show(number, _):
        print(signal.Signals(number).name, flush=True)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, show)
    child = subprocess.Popen(["sleep", "60"])
    print(os.getpid(), child.pid, flush=True)
    for line in sys.stdin:
        break
    child.kill()
    raise SystemExit(4)
"""


class Program:
    """A module that ranks run, in a directory of its own."""

    def __init__(self, folder: Path, variables: Mapping[str, str], source: str) -> None:
        folder.joinpath("program.py").write_text(textwrap.dedent(source), encoding="utf-8")
        self.folder, self.variables = folder, dict(variables)
        self.plain = [sys.executable, "-m", "program", "an argument", "ä"]

    def start(self, argv: list[str], **options: Any) -> subprocess.Popen[str]:
        options = {"env": self.variables, "cwd": self.folder, "text": True, **options}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, **{**pipes, **options})

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(argv, **options)
        printed, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess([process.pid], process.returncode, printed, errors)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
