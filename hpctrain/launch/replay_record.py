"""What a replay repeats: the record of a run, or why it cannot be repeated."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.config import LAUNCHERS
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.launch.container import is_of_interpreter
from hpctrain.launch.stored import NEEDED_OF_PLAN, StoredRun, unpack_stored
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir import FORMAT
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.reading import damaged
from hpctrain.rundir.trust import check_owner, check_run_directory, read_spec
from hpctrain.worker.pinned import pin_sources

_NEEDED = (*NEEDED_OF_PLAN, "trainer", "digests", "launch_plan")
# Their output is no part of the run directory, so the same again would write over it.
_NO_TRAINING = {
    "hpctrain.predict.": "a batch prediction: 'hpctrain predict', or its script, makes it again",
    "hpctrain.serve.": "a server: 'hpctrain serve' starts it again",
}


def read_replayable(paths: RunPaths) -> tuple[dict[str, Any], RunSpec]:
    """Return the content of a run's ``plan.json`` and ``spec.pkl``.

    Not collective. ``spec.pkl`` is opened only if no other user can have written it; what its
    parts hold is not.

    Raises
    ------
    ConfigError
        If the run cannot be replayed, with the reason and the next step.
    DamagedFileError
        If a file of it is damaged.
    """
    root = paths.root
    try:
        plan = read_plan(paths, needs=_NEEDED)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{root} has no plan.json: it was never begun, and keeps nothing to replay. Begin it "
            f"with its script."
        ) from error
    if (version := plan.get("format", 1)) != FORMAT and not _is_older(version):
        raise ConfigError(
            f"{paths.plan} has format {version!r}, and this hpctrain knows formats up to {FORMAT}. "
            f"Replay it with the hpctrain that began it, or a newer one."
        )
    _refuse_other_kinds(root, plan)
    try:
        check_run_directory(root, instead="a run of your own")
        check_owner(os.stat(paths.plan), paths.plan, what="file", instead="a run of your own")
        content = read_spec(paths)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{root} has no spec.pkl, which holds the training function. {_by_script(plan)}"
        ) from error
    except PermissionError as error:
        raise ConfigError(
            f"{paths.spec} can be read by its owner only: it holds code, which would run as you. "
            f"Ask the owner to replay the run. {_by_script(plan)}"
        ) from error
    _refuse_other_python(root, plan)
    try:
        return plan, RunSpec.from_bytes(content)
    # Unpickling raises what it likes.
    except Exception as error:
        raise damaged(paths.spec, f"{type(error).__name__}: {error}") from error


def load_replayable(paths: RunPaths, plan: dict[str, Any], spec: RunSpec) -> StoredRun:
    """Return what a run was begun with, after its modules are pinned in this process.

    Not collective. From here on this process imports as the run did: its working directory, its
    module path and its modules are those of the run.

    Raises
    ------
    ConfigError
        If what it was begun with is gone, or cannot be loaded any more.
    """
    cwd = spec.settings.cwd
    try:
        os.chdir(cwd)
    except OSError as error:
        raise ConfigError(
            f"the working directory of {paths.root}, {cwd}, cannot be entered: {error.strerror}. "
            f"Its ranks begin there: make it again, or let it be seen here."
        ) from error
    if not spec.executor:
        raise ConfigError(
            f"{paths.root} does not hold its RunConfig: a callback or stop= of it could not be "
            f"pickled. {_by_script(plan)}"
        )
    of_run = module_path(spec.settings.sys_path, recorded_python=plan.get("python"))
    sys.path[:] = list(dict.fromkeys((*of_run, *sys.path)))
    pin_sources(spec.sources, says_changes=False)
    try:
        stored = unpack_stored(paths, plan, spec, None)
    except HpctrainError:
        raise
    # What a module of the user's raises while it is imported, and unpickling itself.
    except Exception as error:
        raise ConfigError(
            f"what {paths.root} was begun with cannot be loaded any more: "
            f"{type(error).__name__}: {error}. Install or restore what is missing, or begin it "
            f"with its script. {_by_script(plan)}"
        ) from error
    resumed = stored.resume_from
    if resumed is not None and not resumed.is_dir():
        raise ConfigError(
            f"{paths.root} began with the checkpoint {resumed}, which is gone. Restore it, or "
            f"begin without it, by the script. {_by_script(plan)}"
        )
    return stored


def module_path(recorded: Sequence[str], *, recorded_python: str | None) -> tuple[str, ...]:
    """Return the ``sys.path`` of a run, with the packages of this interpreter.

    Not collective.

    Parameters
    ----------
    recorded
        As it was.
    recorded_python
        The interpreter of the run: the packages of another one give way to those of this one.
    """
    if recorded_python in (None, sys.executable):
        return tuple(recorded)
    own = [path for path in recorded if not is_of_interpreter(path)]
    return tuple(dict.fromkeys([*own, *filter(is_of_interpreter, sys.path)]))


def _is_older(version: object) -> bool:
    return isinstance(version, int) and version <= FORMAT


def _refuse_other_kinds(root: Path, plan: dict[str, Any]) -> None:
    launcher = plan["launch_plan"].get("launcher")
    if launcher not in LAUNCHERS:
        raise damaged(RunPaths(root).plan, f"its launcher is {launcher!r:.80}")
    if launcher == "inline":
        raise ConfigError(
            f"{root} ran in the interpreter of its script or notebook (num_workers=0), whose "
            f"variables no file keeps. Run that again; with num_workers=1 it can be replayed."
        )
    if launcher == "spmd":
        raise ConfigError(
            f"{root} ran on ranks that your own srun or mpiexec had started, with a command that "
            f"hpctrain does not know. Start that again. {_by_script(plan)}"
        )
    for module, what in _NO_TRAINING.items():
        if plan["trainer"].startswith(module):
            raise ConfigError(f"{root} is no training but {what}.")


def _refuse_other_python(root: Path, plan: dict[str, Any]) -> None:
    """Refuse bytecode of another Python, which can crash the interpreter."""
    recorded = plan.get("versions", {}).get("python")
    if not isinstance(recorded, str):
        return
    now = platform.python_version()
    if recorded.split(".")[:2] != now.split(".")[:2]:
        raise ConfigError(
            f"{root} was begun with Python {recorded}, and this is {now}: a stored function is "
            f"bytecode of its version. Replay it with that Python: "
            f"{shlex.quote(str(plan.get('python', 'python')))} -m hpctrain.cli replay "
            f"{shlex.quote(str(root))}"
        )


def _by_script(plan: dict[str, Any]) -> str:
    """Return how the run was begun, as the next step."""
    argv = [str(word) for word in plan.get("argv", ())]
    if not argv or not argv[0].endswith(".py"):
        return "Begin it again from where it was begun."
    where = shlex.quote(str(plan.get("cwd", ".")))
    return f"Its script was: cd {where} && python {shlex.join(argv)}"
