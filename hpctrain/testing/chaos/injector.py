"""Code in every Python process of a trial. A copy of this file is its ``sitecustomize``.

It imports nothing of hpctrain and only the standard library: it runs before anything else does, in
the user's script, the executor, agents and ranks alike. The folder that the copy lies in is the
trial's (`hpctrain.testing.chaos.trial`): ``faults.json`` says what is to happen, ``trace.jsonl``
gets what was done, ``claimed/`` which faults came about.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from typing import Any

ANNOUNCE = "announce"
"""Act of a fault that the harness brings about while the process waits."""
FORKED = "forked"
"""Folder of the trial with the role of each process that was forked, by its `process_name`."""
UNANSWERED = "unanswered"
"""Folder of the trial with the faults that the harness has not brought about in time."""
_ANNOUNCE_PATIENCE_S = 60.0
_POLL_S = 0.01
# Each launcher has its own; srun with PMI2 sets two of them, to the same number.
_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
# Times and random numbers in names; report numbers have 6 digits.
_NEVER_THE_SAME = re.compile(r"[0-9a-f]{9,}")


def role_of(argv: Sequence[str], environ: Mapping[str, str], script: str) -> str:
    """Return what a process is to a run: ``rank-2``, ``agent``, ``job``, ``driver`` or ``other``.

    Not collective. ``job`` is the supervisor and its child, the executor, which is a fork of it;
    ``executor`` is one in the background, which a ``template`` may have forked. Those of trials of
    a sweep are ``trial_00003/rank-2``. ``allocation`` is the salloc around a script.
    """
    if argv and os.path.basename(argv[0]) == "salloc":
        # It has the command of the script at the end of its own.
        return "allocation"
    # srun and mpiexec have the command of a rank at the end of their own.
    module, *rest = argv[argv.index("-m") + 1 :] if "-m" in argv[1:4] else [""]
    if module == "hpctrain.worker.main":
        numbers = [environ[name] for name in _RANK_VARIABLES if name in environ]
        return f"{trial_prefix(*rest[:1])}rank-{numbers[0]}" if numbers else "other"
    if module == "hpctrain.execute.agent":
        return "agent"
    if module == "hpctrain.execute.supervisor":
        return "job"
    if module == "hpctrain.launch.background":
        return f"{trial_prefix(*rest[:1])}executor"
    if module == "hpctrain.launch.executor_template":
        return "template"
    return "driver" if script in argv[:3] else "other"


def trial_prefix(run_dir: str = "") -> str:
    """Return ``trial_00003/`` for the run directory of a trial of a sweep; else nothing.

    Not collective.
    """
    sweep, name = os.path.split(run_dir)
    return f"{name}/" if os.path.basename(os.path.dirname(sweep)) == "storage" else ""


def process_name(proc: str) -> str:
    """Return what names a process on this machine and on its virtual node. Not collective.

    Parameters
    ----------
    proc
        Its folder in ``/proc``.
    """
    with open(f"{proc}/status", encoding="utf-8", errors="replace") as file:
        own = next((line.split()[-1] for line in file if line.startswith("NSpid:")), "")
    return f"{os.readlink(f'{proc}/ns/pid')}-{own}"


class Injector:
    """Records file operations of this process in the storage of a trial, and injects the faults.

    Parameters
    ----------
    trial
        Folder of the trial.
    """

    def __init__(self, trial: str) -> None:
        self._trial = trial
        self.storage = os.path.join(trial, "storage")
        with open(os.path.join(trial, "faults.json"), encoding="utf-8") as file:
            settings = json.load(file)
        self._is_local = settings["local"]
        self._faults: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for fault in settings["faults"]:
            place = (fault["role"], fault["op"], fault["path"], fault["moment"])
            self._faults.setdefault(place, []).append(fault)
        self._script = settings["script"]
        self._pid = -1
        self._find_role()
        self._real_paths: dict[str, str] = {}
        self._write = os.write
        self._trace = os.open(
            os.path.join(trial, "trace.jsonl"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )

    @property
    def role(self) -> str:
        """Role of this process in the run."""
        if self._role == "job":
            return "supervisor" if os.getpid() == self._pid else "executor"
        if self._role == "driver" and self._is_local:
            return "executor"
        if self._role == "template":
            # What it forks has the command of an executor.
            return role_of(sys.orig_argv, {}, self._script)
        return self._role

    def _find_role(self) -> None:
        self._role = role_of(sys.orig_argv, os.environ, self._script)  # noqa: TID251
        self._pid = os.getpid()

    def begin(self) -> None:
        """Begin what this process is to the run."""
        if self.role.startswith("rank-"):
            self.pass_by("start", "process", "before")

    def begin_after_fork(self) -> None:
        """Begin what this process is since hpctrain's fork server has made it."""
        self._find_role()
        # The kernel shows the environment of the server, where the rank is not in.
        forked = os.path.join(self._trial, FORKED)
        os.makedirs(forked, exist_ok=True)
        name = process_name("/proc/self")
        with open(os.path.join(forked, name), "w", encoding="utf-8") as file:
            file.write(self.role)
        self.begin()

    def pass_by(self, op: str, path: str, moment: str, *, role: str = "") -> None:
        """Note that this process is at a point, and do what is to happen there."""
        role = role or self.role
        entry = [time.time(), role, op, path, moment, os.getpid()]
        self._write(self._trace, json.dumps(entry).encode() + b"\n")
        for fault in self._faults.get((role, op, path, moment), ()):
            if self._claim(fault["id"]):
                self._strike(fault, path)

    def below_storage(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path relative to the storage, or None if it is elsewhere."""
        try:
            if isinstance(path, int):
                found = os.readlink(f"/proc/self/fd/{path}")
            else:
                found = os.fsdecode(path)
                if dir_fd is not None:
                    found = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), found)
                found = os.path.abspath(found)
        except (OSError, TypeError, ValueError):
            return None
        if not found.startswith(self.storage + "/"):
            return None
        name = _NEVER_THE_SAME.sub("X", found[len(self.storage) + 1 :])
        self._real_paths[name] = found
        return name

    def _claim(self, name: str) -> bool:
        try:
            os.mkdir(os.path.join(self._trial, "claimed", name))
        except FileExistsError:
            return False
        return True

    def _strike(self, fault: Mapping[str, Any], path: str) -> None:
        act = fault["act"]
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif act == "error":
            # The call itself would name the file as it was given.
            real_path = self._real_paths.get(path, path)
            raise OSError(fault["errno"], os.strerror(fault["errno"]), real_path)
        elif act == "torn":
            # What a power cut leaves of a file that was not yet on the disk.
            target = self._real_paths[path]
            os.truncate(target, int(os.path.getsize(target) * fault["amount"]))
            os.kill(os.getpid(), signal.SIGKILL)
        elif act == ANNOUNCE:
            self._announce(fault["id"])
        else:
            raise ValueError(f"no act {act!r}")

    def _announce(self, name: str) -> None:
        os.mkdir(os.path.join(self._trial, "announced", name))
        answer = os.path.join(self._trial, "answered", name)
        deadline = time.monotonic() + _ANNOUNCE_PATIENCE_S
        while not os.path.exists(answer):
            if time.monotonic() >= deadline:
                os.mkdir(os.path.join(self._trial, UNANSWERED, name))
                return
            time.sleep(_POLL_S)


def wrap_calls(injector: Injector) -> None:
    """Let the calls of `os` that change files pass by the injector, before and after."""

    def wrap(owner: Any, name: str, op: str, path_of: Callable[..., str | None]) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args, **kwargs)
            if path is None:
                return real(*args, **kwargs)
            injector.pass_by(op, path, "before")
            answer = real(*args, **kwargs)
            injector.pass_by(op, path, "after")
            return answer

        call.__name__ = name
        # shutil looks for functions in os.supports_dir_fd.
        for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if real in group:
                group.add(call)
        setattr(owner, name, call)

    below = injector.below_storage

    def target(source: Any, target: Any, *_: Any, dst_dir_fd: int | None = None, **__: Any) -> Any:
        return below(target, dst_dir_fd)

    def first(path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> Any:
        return below(path, dir_fd)

    def opened(path: Any, flags: int, *_: Any, dir_fd: int | None = None, **__: Any) -> Any:
        return below(path, dir_fd) if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else None

    def opened_file(path: Any, mode: str = "r", *_: Any, **__: Any) -> Any:
        return below(path) if set(mode) & set("wax+") and not isinstance(path, int) else None

    for name in ("fsync", "fdatasync"):
        wrap(os, name, "fsync", first)
    for name in ("rename", "replace"):
        wrap(os, name, "rename", target)
    for name in ("link", "symlink"):
        wrap(os, name, "link", target)
    for name in ("unlink", "remove"):
        wrap(os, name, "unlink", first)
    for name in ("write", "pwrite"):
        wrap(os, name, "write", first)
    wrap(os, "mkdir", "mkdir", first)
    wrap(os, "open", "open", opened)
    wrap(builtins, "open", "open", opened_file)
    io.open = builtins.open


class ImportPatch:
    """An entry of ``sys.meta_path``: changes a module right after it was imported.

    Parameters
    ----------
    patches
        What to do with a module, by its name.
    """

    def __init__(self, patches: Mapping[str, Callable[[Any], None]]) -> None:
        self._patches = dict(patches)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the module's own spec, whose loader also applies the patch."""
        patch = self._patches.pop(name, None)
        spec = None if patch is None else PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or patch is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch_reports(injector: Injector, module: Any) -> None:
    """Let every ``report()`` pass by the injector."""
    real = module.Session.report

    def report(session: Any, *args: Any, **kwargs: Any) -> Any:
        name, role = f"report-{session.reports + 1}", injector.role
        if prefix := trial_prefix(str(session._paths.root)):
            # Whatever command its process was started with.
            role = f"{prefix}rank-{session.world.world_rank}"
        injector.pass_by("report", name, "before", role=role)
        answer = real(session, *args, **kwargs)
        injector.pass_by("report", name, "after", role=role)
        return answer

    module.Session.report = report


def watch_start(injector: Injector, module: Any) -> None:
    """Let every rank pass by the injector before and after it initialises MPI."""
    real = module.initialize

    def initialize() -> Any:
        injector.pass_by("start", "world", "before")
        answer = real()
        injector.pass_by("start", "world", "after")
        return answer

    module.initialize = initialize


def redirect_storage(injector: Injector, module: Any) -> None:
    """Let every ``fit()`` of the script put its run into the trial, under a name that stays."""
    import dataclasses

    real = module.fit
    unnamed = 0

    def fit(request: Any) -> Any:
        nonlocal unnamed
        config = request.run_config
        if config.name is None:
            unnamed += 1
        name = config.name or f"unnamed-{unnamed}"
        config = dataclasses.replace(config, storage_path=injector.storage, name=name)
        return real(dataclasses.replace(request, run_config=config))

    module.fit = fit


def install(trial: str) -> Injector:
    """Make this process one of a trial."""
    injector = Injector(trial)
    wrap_calls(injector)
    patches = {
        "hpctrain.worker.mpi": lambda module: watch_start(injector, module),
        "hpctrain.worker.report": lambda module: watch_reports(injector, module),
        "hpctrain.launch.fit": lambda module: redirect_storage(injector, module),
    }
    sys.meta_path.insert(0, ImportPatch(patches))
    injector.begin()
    return injector


if __name__ == "sitecustomize":
    _injector = install(os.path.dirname(os.path.abspath(__file__)))

    def after_rank_fork() -> None:
        """Begin anew in a rank that the fork server has made."""
        _injector.begin_after_fork()
