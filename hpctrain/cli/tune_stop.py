"""``hpctrain tune stop``: ends a trial for good, or lets a whole sweep stop and go on later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import NowOption
from hpctrain.cli.tune_sweep import SweepArgument, find_trial, read_sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.status import RunStatus
    from hpctrain.tune.ledger import SweepPaths, SweepRecord
    from hpctrain.tune.trial import Trial


def stop(
    sweep: SweepArgument,
    trial: Annotated[
        str | None, typer.Argument(help="Name of a trial: trial_00003. None: the whole sweep.")
    ] = None,
    now: NowOption = False,
) -> None:
    """Stop a sweep at the next reports of its trials, so that it can be resumed; or end a trial.

    The results of a trial that was stopped so far count, and the sweep goes on without it.
    """
    from hpctrain.cli.exit_codes import say

    if trial is None:
        paths, record = read_sweep(sweep)
        say(_stop_sweep(paths, record, now=now))
    else:
        say(_stop_trial(sweep, trial, now=now))


def _stop_trial(sweep: SweepArgument, trial: str, *, now: bool) -> str:
    """Stop a trial for good; return what was done, for a person."""
    from hpctrain.launch.cancel import cancel_run
    from hpctrain.rundir.status import read_status
    from hpctrain.tune.ledger import SweepPaths
    from hpctrain.tune.person_stops import mark_stopped
    from hpctrain.tune.place import find_state
    from hpctrain.tune.tuner_life import describe_silence

    run, found = find_trial(sweep, trial)
    status = read_status(run)
    if (over := _is_over(found, status)) is not None:
        return f"{trial} is {over}; there is nothing to stop."
    paths, record = read_sweep(sweep)
    mark_stopped(SweepPaths(root=run.root.parent), trial)
    if status is not None and not status.state.is_final:
        done = cancel_run(run, now=now)
        after = read_status(run)
        if not now and after is not None and after.state.is_final:
            # Its job had not begun.
            return done
        return f"{trial} was ended." if now else f"asked {trial} to stop at its next report."
    waits = "has not begun" if status is None else "waits"
    is_at_work = find_state(paths, record) == "running" and not describe_silence(paths)
    when = "now" if is_at_work else "when the sweep goes on"
    return f"{trial} {waits}, and does not run any more: it ends {when}."


def _is_over(trial: Trial, status: RunStatus | None) -> str | None:
    """Return how a trial has ended, whether its tuner has seen it or not; None if it has not."""
    from hpctrain.rundir.states import RunState

    if trial.state.is_final:
        return str((trial if status is None else status).state.value)
    is_waiting = trial.state.value in ("PENDING", "PAUSED")
    if status is None or is_waiting or status.state not in (RunState.FINISHED, RunState.FAILED):
        return None
    return str(status.state.value)


def _stop_sweep(paths: SweepPaths, record: SweepRecord, *, now: bool) -> str:
    """Stop all trials of a sweep and its tuner; return what was done, for a person."""
    from hpctrain.launch.claim import find_claim
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.tune.person_stops import request_stop
    from hpctrain.tune.place import find_state
    from hpctrain.tune.tuner_life import has_life

    name, state = paths.root.name, find_state(paths, record)
    if state == "ended":
        return f"{name} is ended; there is nothing to stop."
    request_stop(paths, now=now)
    resumes = f"Tuner.restore({str(paths.root)!r}, trainable).fit() goes on."
    claim = find_claim(RunPaths(paths.root)) if state == "running" else None
    if claim is not None and has_life(paths, claim):
        how = "ends them at once" if now else "stops them at their next reports"
        return f"asked the tuner of {name} to stop its trials, and itself: it {how}. {resumes}"
    # Its tuner has died, or was stopped before; trials do not end with it.
    asked = _stop_runs(paths, record, now=now)
    done = "ended" if now else "asked to stop at their next reports"
    which = f"{', '.join(asked)} were {done}" if asked else "none of its trials runs"
    return f"{name} has no tuner at work; {which}. {resumes}"


def _stop_runs(paths: SweepPaths, record: SweepRecord, *, now: bool) -> list[str]:
    """Stop the trials that run without a tuner; return their names.

    Raises
    ------
    HpctrainError
        The first of those that cannot be stopped from here, once all others are.
    """
    from functools import cache

    from hpctrain.errors import HpctrainError
    from hpctrain.launch.cancel import cancel_run
    from hpctrain.launch.life import job_is_alive
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.status import read_status

    asked, errors, is_alive = [], [], cache(job_is_alive)
    for trial_id in record.trials:
        run = RunPaths(paths.run(trial_id))
        status = read_status(run)
        if status is None or not _may_run(run, status, is_alive):
            continue
        try:
            cancel_run(run, now=now)
            asked.append(trial_id)
        except HpctrainError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return asked


def _may_run(run: RunPaths, status: RunStatus, job_is_alive: Callable[[str], bool | None]) -> bool:
    """Return whether an executor is at work on a run, as far as one look shows it."""
    from hpctrain.errors import LaunchError
    from hpctrain.launch.life import LifeTest

    # Of jobs of their own cancel_run() finds it out.
    if status.state.is_final or status.launcher == "slurm":
        return not status.state.is_final
    try:
        return LifeTest(run, job_is_alive).look(status) is not False
    except LaunchError:
        return True
