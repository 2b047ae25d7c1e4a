"""A sweep that is there already: whether it goes on, is refused, or is to be moved aside."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hpctrain import environ
from hpctrain.config import ExistingPolicy, RunConfig
from hpctrain.errors import ConfigError, LaunchError, RunStoppedError
from hpctrain.launch.life import LOOK_INTERVAL_S, QUIET_S, LifeTest, job_is_alive
from hpctrain.launch.settle import read_settled_status
from hpctrain.launch.storage import errors_of_storage
from hpctrain.log import log
from hpctrain.rundir.closed import describe_closed
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import check_run_directory
from hpctrain.tune.ledger import SweepPaths, SweepRecord, has_sweep, read_record
from hpctrain.tune.person_stops import read_stop_request
from hpctrain.tune.place import is_begun
from hpctrain.tune.trainable import Trainable, name_trainable


def is_to_go_on(paths: SweepPaths) -> bool:
    """Return whether a sweep that a script restores goes on. Not collective.

    ``HPCTRAIN_EXISTING`` wins over the script.

    Raises
    ------
    ConfigError
        If it accepts no sweep that is there.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    if environ.restart_count() and read_record(paths).job_id == job_id:
        # Slurm has started this job again, and its script goes on as it began.
        return True
    if environ.requested_existing() == "error":
        raise ConfigError(
            f"{paths.root} is a sweep already, and HPCTRAIN_EXISTING=error accepts none. Unset it "
            f"to go on with the sweep."
        )
    return environ.requested_existing() != "restart"


def has_job_ended(record: SweepRecord) -> bool:
    """Return whether the last tuner of a sweep was in a job, or a start of it, that is over.

    Not collective.
    """
    here = environ.variable("SLURM_JOB_ID"), environ.restart_count()
    if record.started.get("launcher") == "slurm":
        # Its trials have jobs of their own.
        return False
    return record.job_id is not None and (record.job_id, record.restarts) != here


def refuse_stopped(paths: SweepPaths, record: SweepRecord) -> None:
    """Refuse a sweep that a person has stopped, if it is Slurm that starts its job again.

    Not collective. A person who starts it again lets it go on.

    Raises
    ------
    RunStoppedError
        If it is. The request stays.
    """
    is_same_job = record.job_id is not None and record.job_id == environ.variable("SLURM_JOB_ID")
    if record.ended is not None or not is_same_job or environ.restart_count() <= record.restarts:
        return
    if read_stop_request(paths) is not None:
        raise RunStoppedError(
            f"sweep {paths.root.name} was stopped by hpctrain tune stop, and Slurm has started its "
            f"job {record.job_id} again: nothing is run. To go on with it, submit the script as "
            f"another job. Or remove {paths.stop_request} before this one is queued again."
        )


def find_paths(config: RunConfig, trainable: Trainable, policy: ExistingPolicy) -> SweepPaths:
    """Return where a new sweep goes. Not collective.

    Parameters
    ----------
    config
        Name and storage path of the sweep.
    trainable
        Names the sweep if `config` does not.
    policy
        What is done with a sweep that is there.

    Raises
    ------
    ConfigError
        If a run is there, or a sweep that `policy` does not move aside.
    """
    name = config.name
    if name is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{name_trainable(trainable)}_{stamp}_{secrets.token_hex(2)}"
    paths = SweepPaths(root=Path(config.storage_path).absolute() / name)
    root = RunPaths(paths.root)
    with errors_of_storage(root):
        # First: another user may have closed the directory to this one.
        check_run_directory(paths.root)
        if root.plan.exists():
            raise ConfigError(
                f"{paths.root} is a run, and not a sweep. Choose another RunConfig(name=...)."
            )
        if is_begun(paths):
            refuse_existing(paths, policy)
    return paths


@contextmanager
def errors_of_closed(paths: SweepPaths) -> Iterator[None]:
    """Name the owner of a sweep that this user may not read. Not collective.

    Raises
    ------
    ConfigError
        If there is a file or directory in it that this user may not read.
    """
    try:
        yield
    except PermissionError as error:
        closed = Path(os.fsdecode(error.filename or paths.root))
        raise ConfigError(
            f"{paths.root} may be a sweep, but user {os.geteuid()} may not read {closed} "
            f"({error.strerror}): {describe_closed(closed)}. A sweep goes on for its owner alone: "
            f"restore one that is yours, or begin another one in a storage_path that is yours."
        ) from error


def refuse_existing(paths: SweepPaths, policy: ExistingPolicy) -> None:
    """Refuse a sweep that is there, unless it is to be moved aside. Not collective.

    Raises
    ------
    ConfigError
        If it is not.
    """
    if policy != "restart":
        if not has_sweep(paths):
            raise ConfigError(
                f"{paths.root} has trials of a sweep, but its tune.jsonl is gone, empty or damaged "
                f"at its beginning: it cannot go on. Bring the file back from a backup. Or choose "
                f"another RunConfig(name=...), or existing='restart', which moves all of it aside."
            )
        raise ConfigError(
            f"{paths.root} is a sweep already. Go on with it: "
            f"Tuner.restore({str(paths.root)!r}, trainable).fit()   Or choose another "
            f"RunConfig(name=...), or existing='restart', which moves it aside."
        )


def refuse_live(paths: SweepPaths) -> None:
    """Refuse to move a sweep aside whose trials outlive its tuner. Not collective.

    Those of another host are watched at the same time, until it is known of each.

    Raises
    ------
    ConfigError
        If a trial runs, or its job waits.
    LaunchError
        If Slurm does not answer what becomes of a job.
    """
    runs = [RunPaths(root) for root in sorted(paths.root.glob("trial_*")) if root.is_dir()]
    try:
        live = _find_live(runs)
    except LaunchError as error:
        raise LaunchError(
            f"trials of the sweep {paths.root} had jobs of their own, and it is not known whether "
            f"one still runs. Begin it anew (existing='restart') where Slurm answers, or choose "
            f"another RunConfig(name=...). {error}"
        ) from error
    if live:
        raise ConfigError(
            f"the sweep {paths.root} has no tuner, but trials that still run: {', '.join(live)}. "
            f"Only a sweep that is over can be begun anew (existing='restart'). Stop them with: "
            f"hpctrain tune stop {shlex.quote(str(paths.root))}   Or choose another "
            f"RunConfig(name=...)."
        )


def _find_live(runs: Iterable[RunPaths]) -> list[str]:
    """Return the names of the runs that an executor is, or will be, at work on."""
    begun, has_logged, ask = time.monotonic(), False, cache(job_is_alive)
    unknown, live = {run: LifeTest(run, ask) for run in runs if not _is_over(run)}, []
    while unknown:
        for run, life in list(unknown.items()):
            status = read_status(run)
            is_live = False if status is None else life.look(status)
            if is_live is not None:
                del unknown[run]
                live += [run.root.name] if is_live else []
        if live:
            break
        if unknown and not has_logged and time.monotonic() - begun >= QUIET_S:
            has_logged = True
            log(
                f"{len(unknown)} trials of the earlier sweep run on another host, or their "
                f"executors have died. Waiting for them to write status.json, for twice the "
                f"node_timeout_s of their FailureConfig at most."
            )
        time.sleep(LOOK_INTERVAL_S if unknown else 0)
    return live


def _is_over(run: RunPaths) -> bool:
    # What a killed tuner was submitting is asked of Slurm.
    status = read_settled_status(run)
    return status is None or status.state.is_final
