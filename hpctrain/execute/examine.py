"""Look at a process from outside, when it cannot report itself where it is."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.control.wire import Frame
from hpctrain.log import log
from hpctrain.own_files import open_log
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.paths import RunPaths

_MAX_STACK_BYTES = 2**16
# The header of a frame may have 1 MiB, and a rank and its pid take up to 28 bytes of it.
_RANKS_OF_A_PART = 10_000
# man 5 proc, field State of /proc/PID/status.
_REASONS = {
    "T": "its process is stopped (SIGSTOP, or Ctrl-Z)",
    "t": "its process is stopped by a debugger",
    "D": "its process waits in the kernel and cannot be interrupted, as a rule for a filesystem",
    "Z": "its process has ended, and its parent has not collected its status",
}
_NO_PYTHON = (
    "its process lives but runs no Python: compiled code holds Python's lock (GIL), or its memory "
    "is on the way to or from swap"
)


@dataclass(frozen=True)
class Examination:
    """What there is to see of a process from outside."""

    reason: str
    """Why it does not answer, for the message."""
    text: str
    """Everything, for the file."""


class Examiner:
    """Examines ranks of this host in a thread, one after the other, and writes down what it saw.

    Used by the agent of a node, and on one machine by the executor.
    """

    def __init__(self) -> None:
        self._seen: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def begin(self, request: Frame, ranks: Mapping[int, int]) -> None:
        """Begin to examine.

        Parameters
        ----------
        request
            The executor's ``examine``.
        ranks
            Those of this host, with their pids.
        """
        arguments = (request, dict(ranks))
        threading.Thread(target=self._run, args=arguments, name="examiner", daemon=True).start()

    def frames(self) -> list[Frame]:
        """Return an ``examined`` for each rank that was examined since the last call."""
        frames = []
        while not self._seen.empty():
            frames.append(self._seen.get())
        return frames

    def _run(self, request: Frame, ranks: dict[int, int]) -> None:
        header = request.header
        silent = set(header["silent"])
        paths = RunPaths(Path(header["run"]))
        # What did not answer is what matters, and time is short.
        for rank in sorted(ranks, key=lambda rank: (rank not in silent, rank)):
            if rank in silent:
                seen = examine(ranks[rank])
            else:
                seen = Examination("", native_stack(ranks[rank]))
            answer = {"op": "examined", "rank": rank, "attempt": header["attempt"]}
            body = seen.text.encode()[:_MAX_STACK_BYTES]
            self._seen.put(Frame({**answer, "reason": seen.reason}, body, b""))
            if seen.text:
                path = paths.stacks_of_rank(header["attempt"], rank)
                _append(path, seen.text, run_dir=paths.root)


def in_parts(pids: Mapping[int, int], silent: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Return what requests for some ranks say, each of so many that it fits into a header.

    Not collective.

    Parameters
    ----------
    pids
        The processes of the ranks.
    silent
        Those that did not answer where they are.
    """
    ranks, quiet = list(pids), set(silent)
    for start in range(0, len(ranks), _RANKS_OF_A_PART):
        part = ranks[start : start + _RANKS_OF_A_PART]
        yield {
            "pids": {rank: pids[rank] for rank in part},
            "silent": [rank for rank in part if rank in quiet],
        }


def examine(pid: int) -> Examination:
    """Return what there is to see of a process of this host that does not answer."""
    try:
        status = _read(f"/proc/{pid}/status")
    except OSError:
        return Examination("its process is gone", f"process {pid} is gone\n")
    state = status.partition("State:")[2].split()[0]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = [
        f"process {pid} did not answer; this is what it looks like from outside, {stamp}",
        f"state: {status.partition('State:')[2].splitlines()[0].strip()}",
        f"waits in the kernel in: {_read_or_reason(f'/proc/{pid}/wchan')}",
        f"kernel stack:\n{_read_or_reason(f'/proc/{pid}/stack')}",
        f"py-spy:\n{_py_spy(pid, is_stopped=state in 'Tt')}",
    ]
    return Examination(_REASONS.get(state, _NO_PYTHON), "\n".join(lines) + "\n")


def native_stack(pid: int) -> str:
    """Return Python and native stacks of a process that has sent its Python stacks itself."""
    return f"\nwith native frames, by py-spy:\n{_py_spy(pid)}\n" if find_py_spy() else ""


def find_py_spy() -> Path | None:
    """Return where py-spy is: in this environment, on ``PATH``, or nowhere."""
    beside = Path(sys.executable).with_name("py-spy")
    return beside if beside.exists() else environ.find_program("py-spy")


def _py_spy(pid: int, *, is_stopped: bool = False) -> str:
    program = find_py_spy()
    if program is None:
        return "not installed: pip install 'hpctrain[diagnose]'"
    # It need not stop what is stopped; and it can read native frames only where it has stopped it.
    how = "--nonblocking" if is_stopped else "--native"
    try:
        done = subprocess.run(
            [str(program), "dump", how, "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=timeouts.PY_SPY_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it did not work: {error}"
    if done.returncode == 0:
        return done.stdout
    scope = _read_or_reason("/proc/sys/kernel/yama/ptrace_scope")
    return f"it did not work: {done.stderr.strip()} (kernel.yama.ptrace_scope: {scope})"


def _append(path: Path, text: str, *, run_dir: Path) -> None:
    try:
        make_directory(path.parent, below=run_dir)
        with open(open_log(path), "a") as file:
            file.write(text)
    except OSError as error:
        log(f"cannot write {path}: {error.strerror}")


def _read_or_reason(path: str) -> str:
    try:
        return _read(path).strip() or "(empty)"
    except OSError as error:
        return f"not readable ({error.strerror})"


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace")
