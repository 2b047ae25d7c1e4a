"""`ForkedRank`: from a fork of the server to the state in which an interpreter begins a program."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hpctrain import environ
from hpctrain.worker.launched import Launched, apply_signals
from hpctrain.worker.task_cgroups import explain_cgroup
from hpctrain.worker.threads import explain_binding

# fork_client.py's: python -I -S fork_client.py NAME SECONDS PATIENCE ASKED, then the rank's; where
# Python is the node's own, -c and code in place of the file.
_CLIENT_WORDS = 8
_CODE_WORD = 3
_MOST_NAMED = 4
# man 5 proc, /proc/PID/stat: arg_start and arg_end, counted from the third field.
_ARG_START = 48 - 3
_PMI_DESCRIPTOR = "PMI_FD"
_programs: dict[str, tuple[ModuleSpec, CodeType]] = {}


@dataclass(frozen=True, kw_only=True)
class ForkedRank:
    """What a fork of the server does: the program that its launcher has asked for."""

    launched: Launched
    """The client, whose place it takes."""
    pmi: int | None
    """Descriptor that leads to the launcher; None if it has given none."""
    before: Mapping[str, str]
    """Environment of the server before its imports."""
    printed: tuple[bytes, bytes]
    """What its imports have printed on standard output and error."""

    def run(self) -> None:
        """Run the program as ``python -m`` does. Not collective."""
        argv = rank_command(self.launched)
        self._set_environment()
        apply_signals(self.launched)
        show_command(argv)
        cwd = os.getcwd()
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, cwd)
        importlib.invalidate_caches()
        _renew_randomness()
        for descriptor, content in enumerate(self.printed, start=1):
            # A rank that imports for itself prints it too.
            with suppress(OSError):
                os.write(descriptor, content)
        # The objects stay: modules that are imported hold them. They write to the descriptors.
        output: Any = sys.stdout
        output.reconfigure(line_buffering=os.isatty(1) and not output.write_through)
        name = argv[2]
        spec, code = _programs.get(name) or _find_program(name)
        sys.orig_argv[:] = argv
        sys.argv[:] = [str(spec.origin), *argv[3:]]
        main: Any = ModuleType("__main__")
        main.__spec__, main.__loader__ = spec, spec.loader
        main.__file__, main.__cached__ = spec.origin, spec.cached
        main.__package__, main.__builtins__ = spec.parent, builtins
        sys.modules["__main__"] = main
        for customization in ("sitecustomize", "usercustomize"):
            hook = getattr(sys.modules.get(customization), "after_rank_fork", None)
            if hook is not None:
                hook()
        # As an interpreter that begins with it.
        sys.modules.pop(name, None)
        exec(code, vars(main))

    def _set_environment(self) -> None:
        after = environ.environment()
        values = dict(self.launched.environment)
        for name in {*self.before, *after}:
            if self.before.get(name) == after.get(name):
                continue
            # An import has changed it, as it would have here.
            if name in after:
                values[name] = after[name]
            else:
                values.pop(name, None)
        for name in (environ.SLOT_SERVER, environ.SLOT_HOST):
            values.pop(name, None)
        if self.pmi is not None:
            values[_PMI_DESCRIPTOR] = str(self.pmi)
            os.set_inheritable(self.pmi, True)
        environ.replace_environment(values)


def keep_program(name: str) -> None:
    """Keep the code of a module for the ranks that run it, if this process has imported it.

    Not collective. Otherwise each would read the file.
    """
    if name in sys.modules:
        _programs[name] = _find_program(name)


def _find_program(name: str) -> tuple[ModuleSpec, CodeType]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or spec.loader is None:
        raise ImportError(f"{sys.executable} finds no module {name}.")
    return spec, spec.loader.get_code(name)  # type: ignore[attr-defined]


def rank_command(launched: Launched) -> tuple[str, ...]:
    """Return the command that a client would run itself: ``python -m MODULE ...``. Pure."""
    words = launched.argv
    return words[_CLIENT_WORDS + (words[_CODE_WORD : _CODE_WORD + 1] == ("-c",)) :]


def explain_difference(
    launched: Launched, server: Launched, *, before: Mapping[str, str], cwd: str
) -> str:
    """Return why a fork of the server cannot be what a launcher has started, or nothing.

    Not collective.

    Parameters
    ----------
    launched
        The client.
    server
        The server.
    before
        Environment of the server before its imports.
    cwd
        Directory in which it was started.
    """
    command = rank_command(launched)
    if len(command) < 3 or command[1] != "-m" or command[0] != sys.executable:
        return f"ranks run {' '.join(command[:3])}, and the fork server {sys.executable}"
    if reason := explain_cgroup(launched.cgroup, server.cgroup, environment=launched.environment):
        return f"the launcher puts ranks into cgroups of their own, whose limits count: {reason}"
    for what, value in launched.domain.items():
        if (own := server.domain.get(what)) != value:
            return f"the launcher gives ranks another {what}: {value} in place of {own}"
    changed = sorted(
        name
        for name in {*before, *launched.environment}
        if before.get(name) != launched.environment.get(name) and not environ.is_of_launcher(name)
    )
    if changed:
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        return (
            f"the launcher changes variables that libraries read when they are imported: "
            f"{', '.join(changed[:_MOST_NAMED])}{more}. Set them where fit() is called"
        )
    # An empty PYTHONPATH counts as unset; an empty entry means the working directory.
    paths = before.get("PYTHONPATH", "")
    parts = paths.split(os.pathsep) if paths else []
    if launched.cwd != cwd and not all(map(os.path.isabs, parts)):
        return (
            f"ranks start in {launched.cwd}, and PYTHONPATH={paths} is relative. Make it absolute"
        )
    threads = before.get("OMP_NUM_THREADS", "")
    is_narrower = threads.isdigit() and len(launched.affinity) < int(threads)
    if launched.affinity != server.affinity and is_narrower:
        cpus = len(launched.affinity)
        return f"the launcher binds ranks to {cpus} CPUs, fewer than their {threads} threads"
    if launched.affinity != server.affinity:
        return explain_binding(before)
    return ""


def show_command(argv: Sequence[str]) -> None:
    """Let ``ps`` show a command in place of this process's own. Not collective. Never raises.

    In the memory of the arguments: what is longer is cut off.
    """
    import ctypes

    with suppress(OSError, ValueError, IndexError):
        stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = (int(word) for word in stat[_ARG_START : _ARG_START + 2])
        room = end - start
        if start == 0 or room < 1:
            return
        text = b"".join(os.fsencode(word) + b"\0" for word in argv)
        # Were the last byte not 0, the kernel would show the environment behind it too.
        content = text[: room - 1].ljust(room, b"\0")
        ctypes.memmove(start, content, room)


def _renew_randomness() -> None:
    """Give this process random numbers of its own, where fork() copies those of the server.

    `random` does so itself. Of GPUs torch makes the generators when it first uses one.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    # It remembers what TMPDIR was.
    tempfile.tempdir = None
