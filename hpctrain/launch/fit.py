"""What ``fit()`` does, in every home.

What begins a run is imported late: on a laptop ranks have begun to import before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.config import ExistingPolicy
from hpctrain.errors import ConfigError
from hpctrain.launch import inspection
from hpctrain.launch.request import (
    Request,
    Submission,
    choose_launcher,
    make_plan,
    override_slurm,
)
from hpctrain.launch.run_spec import make_spec
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.modules import ModuleFiles
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import check_run_directory

if TYPE_CHECKING:
    from hpctrain.launch.background import RunSlot
    from hpctrain.launch.code_look import TreeLook
    from hpctrain.launch.existing import Existing
    from hpctrain.launch.handle import RunHandle
    from hpctrain.result import Result


def fit(request: Request) -> Result:
    """Run a request, or follow, resume or return what is there under its name.

    Not collective, except where this process already is a rank.

    Raises
    ------
    ConfigError, LaunchError, TrainingFailedError
        As in `hpctrain.function_run.FunctionRun.fit`.
    """
    launcher = _find_launcher(request)
    try:
        if launcher == "spmd":
            from hpctrain.launch.spmd import fit_spmd

            return fit_spmd(request)
        return fit_prepared(prepare(request.named(), launcher))
    finally:
        from hpctrain.launch.code_look import await_records

        # Once fit() has returned, its caller may read code.json.
        await_records()


def fit_prepared(submission: Submission) -> Result:
    """Run what is prepared, or follow, resume or return what is there under its name.

    Not collective.

    Raises
    ------
    ConfigError, LaunchError, TrainingFailedError
        As of `fit`.
    """
    if submission.plan.launcher == "local":
        _run_on_this_machine(submission)
    else:
        _run(submission)
    from hpctrain.result import Result

    return Result.from_path(submission.request.paths.root)


def _run(submission: Submission) -> None:
    launcher = submission.plan.launcher
    if launcher == "inline":
        from hpctrain.launch.inline import alone_in_interpreter, run_inline

        with alone_in_interpreter(submission.request.run_config.name):
            existing = _begin_or_find(submission)
            if existing.begins:
                run_inline(submission)
                return
        _follow_to_end(submission, existing)
        return
    existing = _begin_or_find(submission)
    if existing.begins and launcher != "slurm":
        from hpctrain.execute.fork_server import fork_server_for
        from hpctrain.launch.here import run_here

        run_here(submission, fork_server_for(submission.plan, submission.spec.settings))
    else:
        _follow_to_end(submission, existing)


def _run_on_this_machine(submission: Submission) -> None:
    from hpctrain.execute.fork_server import fork_server_for

    fork_server = fork_server_for(submission.plan, submission.spec.settings)
    with contextlib.closing(fork_server) if fork_server else contextlib.nullcontext():
        before = fork_server.start if fork_server else None
        if before is not None and not submission.request.paths.status.exists() and not _is_shown():
            # It imports while this process imports what begins a run.
            before()
        # Before the run has this process as its executor: a Ctrl-C in one of these imports would
        # leave it so, for as long as a notebook lives.
        from hpctrain.launch.here import run_here

        existing = _begin_or_find(submission, before=before)
        if existing.begins:
            run_here(submission, fork_server)
        else:
            _follow_to_end(submission, existing)


def _follow_to_end(submission: Submission, existing: Existing) -> None:
    """Show a run that another process runs, or leave it; nothing, if it is finished."""
    from hpctrain.launch.existing import Existing

    request = submission.request
    if existing is Existing.FINISHED:
        return
    if environ.detach_requested():
        from hpctrain.launch.detach import leave, print_job_id

        print_job_id(request.paths)
        leave()
    from hpctrain.launch.follow import follow_to_end

    follow_to_end(request.paths, verbose=request.run_config.verbose)


def submit(request: Request) -> RunHandle:
    """Begin a run that goes on without this process, or find the one that is there.

    Not collective. On a login node it is a job; elsewhere its executor is a process in the
    background (`hpctrain.launch.background`).

    Raises
    ------
    ConfigError
        If something is impossible, such as a run without a process of its own.
    LaunchError
        If Slurm refuses the job.
    """
    launcher = _find_launcher(request)
    if launcher == "inline":
        raise ConfigError(
            "num_workers=0 runs in this interpreter, so submit() cannot return before its end. "
            "Call fit(), or use num_workers=1."
        )
    if launcher == "spmd":
        raise ConfigError(
            "this process is one of several ranks that hpctrain did not start, so submit() has "
            "no ranks to start. Call fit() on every rank; or start the script once, without srun "
            "or mpiexec, to submit runs from it."
        )
    return submit_prepared(prepare(request.named(), launcher, in_background=launcher != "slurm"))


def submit_prepared(
    submission: Submission,
    *,
    slot: RunSlot | None = None,
    policy: ExistingPolicy | None = None,
    warns: bool = True,
) -> RunHandle:
    """Begin what is prepared as `submit` does, or find what is there under its name.

    Not collective.

    Parameters
    ----------
    slot
        Of a run in the background that begins at once; None if it waits for its turn.
    policy
        As of `begin_or_find`.
    warns
        Whether to ask Slurm, and warn, of limits that its job is beyond.

    Raises
    ------
    ConfigError, LaunchError
        As of `submit`.
    """
    from hpctrain.launch.existing import Existing
    from hpctrain.launch.handle import RunHandle

    in_background = submission.plan.launcher != "slurm"
    existing = _begin_or_find(
        submission, in_background=in_background, slot=slot, policy=policy, warns=warns
    )
    paths = submission.request.paths
    if environ.detach_requested() and existing is not Existing.FINISHED:
        from hpctrain.launch.detach import print_job_id

        print_job_id(paths)
    return RunHandle(paths.root)


def _find_launcher(request: Request) -> str:
    launcher = choose_launcher(request.scaling_config, request.run_config)
    if launcher not in ("spmd", "inline") and environ.in_rank():
        # Ranks of its own, on this machine, are all that a child of a rank may start.
        return "local"
    if launcher == "allocation":
        from hpctrain.slurm.job import refuse_ended_allocation

        refuse_ended_allocation()
    return launcher


def _is_shown() -> bool:
    """Return whether the run is only to be looked at."""
    return inspection.requested() is not None or environ.dry_run_requested()


def _begin_or_find(
    submission: Submission,
    *,
    in_background: bool = False,
    slot: RunSlot | None = None,
    before: Callable[[], None] | None = None,
    policy: ExistingPolicy | None = None,
    warns: bool = True,
) -> Existing:
    """Begin the run unless it is there; return which of both it was.

    Parameters
    ----------
    before
        Called just before it is written down.
    """
    request = submission.request
    if (look_at := inspection.requested()) is not None:
        look_at(submission)
        raise SystemExit(0)
    if environ.dry_run_requested():
        from hpctrain.launch.dry_run import print_plan

        print_plan(submission)
        raise SystemExit(0)
    from hpctrain.launch.storage import errors_of_storage

    with errors_of_storage(request.paths):
        # First: another user may have closed the directory to this one.
        check_run_directory(request.paths.root)
        # plan.json names the commit: git looks at the tree while this process claims the run.
        look = _look_at_script(submission)
        from hpctrain.launch.begin import begin_or_find
        from hpctrain.launch.existing import Existing

        _await_submission(request.paths)
    begin = partial(
        _begin, submission, in_background=in_background, slot=slot, before=before, look=look
    )
    existing = begin_or_find(submission, begin, policy)
    if existing.begins and warns and submission.plan.launcher == "slurm":
        from hpctrain.launch.precheck import warn_of_limits

        # The job is on its way meanwhile, and other processes need not wait for this.
        warn_of_limits(request, submission.plan)
    if existing is Existing.FINISHED and request.run_config.verbose:
        log(f"run {request.run_config.name} is finished: {request.paths.root}", to=sys.stdout)
    return existing


def _look_at_script(submission: Submission) -> TreeLook | None:
    """Begin to look at the script's tree, if the run is new; a replay has the tree of another."""
    if submission.request.paths.status.exists() or submission.replay_of is not None:
        return None
    from hpctrain.launch.code_record import look_at_script

    return look_at_script()


def prepare(
    request: Request,
    launcher: str,
    *,
    in_background: bool = False,
    share: Mapping[str, AllocatedNode] | None = None,
    files: ModuleFiles | None = None,
    stops_exactly: bool = False,
    awaits_decisions: bool = False,
    job_name: str | None = None,
    tuner_sign: Path | None = None,
) -> Submission:
    """Return a request that is ready to be launched. Not collective. Nothing is written.

    Parameters
    ----------
    in_background
        Whether the executor is to run in a process of its own where there is no job for it.
    share
        What the run has of nodes of the allocation, beside other runs; None is all of them.
    files, stops_exactly, awaits_decisions
        As of `make_spec`.
    job_name, tuner_sign
        As of `make_plan`.

    Raises
    ------
    ConfigError
        If something is impossible.
    """
    # Others than this process read them, on nodes, maybe days later.
    environ.wants_fork_server()
    environ.hub_fanout()
    if launcher == "slurm":
        request = override_slurm(request, environ.slurm_overrides())
    plan, site = make_plan(request, launcher, share=share, job_name=job_name, tuner_sign=tuner_sign)
    spec = make_spec(
        request,
        plan,
        in_background=in_background,
        files=files,
        stops_exactly=stops_exactly,
        awaits_decisions=awaits_decisions,
    )
    return Submission(request=request, plan=plan, site=site, spec=spec)


def _await_submission(paths: RunPaths) -> None:
    """Wait while another process submits the run; see what became of one that no longer does."""
    from hpctrain.launch.claim import claimed
    from hpctrain.launch.settle import read_settled_status

    status = read_settled_status(paths)
    if status is not None and status.state is RunState.SUBMITTING:
        with claimed(paths):
            pass


def _begin(
    submission: Submission,
    changes: list[str],
    *,
    in_background: bool,
    slot: RunSlot | None,
    before: Callable[[], None] | None,
    look: TreeLook | None,
) -> None:
    """Write down what is asked for and who runs it, and submit it where it is a job."""
    from hpctrain.launch.record import write_plan_and_spec

    request = submission.request
    if before is not None:
        before()
    if request.paths.status.exists() and request.run_config.verbose:
        what = f"; changed: {'; '.join(changes)}" if changes else ""
        previous = read_status(request.paths)
        if previous is not None and not previous.is_of(request.paths.root):
            what += f", a copy of {previous.path}, as a run of its own"
        verb = "beginning" if previous is None or previous.attempt == 0 else "resuming"
        log(f"{verb} run {request.run_config.name}{what}")
    write_plan_and_spec(submission, look=look)
    if submission.plan.launcher == "slurm":
        from hpctrain.launch.slurm import submit_job

        submit_job(submission)
    elif in_background:
        from hpctrain.launch.background import start_in_background

        start_in_background(submission, slot)
    else:
        from hpctrain.execute.initial_status import initial_status
        from hpctrain.rundir.run_record import RunRecord

        # From here on other processes see that this one runs the run.
        status = initial_status(request.paths, submission.plan, request.run_config)
        RunRecord(request.paths).write(status)


def refuse_nested_fit(method: str) -> None:
    """Refuse ``fit()`` or ``submit()`` inside a training function. Not collective."""
    from hpctrain.rundir.sweep import sweep_of
    from hpctrain.worker import context

    if context.is_active():
        world = context.active_worker(f"{method}()").context
        instead = (
            "To tune a trainer, give Tuner the trainer itself: Tuner(trainer, param_space="
            "{'train_loop_config': ..., 'scaling_config': ...})."
            if sweep_of(world.get_storage()) is not None
            else "Call it before or after the fit() that this function runs in, or start a process "
            "for it: subprocess.run([sys.executable, 'other.py'])."
        )
        if not environ.in_rank():
            raise ConfigError(
                f"{method}() was called while {world.get_experiment_name()} trains in this "
                f"interpreter (num_workers=0), by its training function or in another thread. "
                f"{instead}"
            )
        raise ConfigError(
            f"{method}() was called inside a training function, by rank {world.get_world_rank()} "
            f"of {world.get_world_size()}. A rank starts no ranks of its own. {instead}"
        )
