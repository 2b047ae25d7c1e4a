"""What ``fit()`` does, in every home."""

from __future__ import annotations

import sys

from hpctrain import environ
from hpctrain.errors import ConfigError
from hpctrain.launch.existing import Existing, decide_on_existing
from hpctrain.launch.record import write_plan_and_spec
from hpctrain.launch.request import (
    Request,
    Submission,
    choose_launcher,
    make_plan,
    make_spec,
    override_slurm,
)
from hpctrain.result import Result


def fit(request: Request) -> Result:
    """Run a request, or follow, resume or return what is there under its name.

    Not collective, except where this process already is a rank.

    Raises
    ------
    ConfigError
        If something is impossible; nothing has been started then.
    LaunchError
        If the ranks, or the job, could not be started.
    TrainingFailedError
        If the run failed or was stopped.
    """
    launcher = choose_launcher(request.scaling_config, request.run_config)
    if launcher not in ("spmd", "inline") and environ.in_rank():
        # Ranks of its own, on this machine, are all that a child of a rank may start.
        launcher = "local"
    if launcher == "spmd":
        from hpctrain.launch.spmd import fit_spmd

        return fit_spmd(request)
    submission = prepare(request.named(), launcher)
    request = submission.request
    if environ.dry_run_requested():
        from hpctrain.launch.dry_run import print_plan

        print_plan(submission)
        raise SystemExit(0)
    existing, changes = decide_on_existing(request.paths, submission.spec, _job_is_alive)
    say = request.run_config.verbose > 0
    if existing is Existing.FINISHED:
        if say:
            print(f"hpctrain: run {request.run_config.name} is finished: {request.paths.root}")
        return Result.from_path(request.paths.root)
    if existing is Existing.FOLLOW:
        if environ.detach_requested():
            from hpctrain.launch.slurm import detach

            detach(request.paths)
        from hpctrain.launch.follow import follow_to_end

        return follow_to_end(request.paths, verbose=request.run_config.verbose)
    if existing is Existing.RESUME and say:
        what = f" with a changed {', '.join(changes)}" if changes else ""
        print(f"hpctrain: resuming run {request.run_config.name}{what}", file=sys.stderr)
    write_plan_and_spec(submission)
    if launcher == "slurm":
        from hpctrain.launch.slurm import submit

        return submit(submission)
    if launcher == "inline":
        from hpctrain.launch.inline import run_inline

        run_inline(submission)
    else:
        from hpctrain.launch.here import run_here

        run_here(submission)
    return Result.from_path(request.paths.root)


def prepare(request: Request, launcher: str) -> Submission:
    """Return a request that is ready to be launched. Not collective. Nothing is written.

    Raises
    ------
    ConfigError
        If something is impossible.
    """
    if launcher == "slurm":
        request = override_slurm(request, environ.slurm_overrides())
    plan, site = make_plan(request, launcher)
    return Submission(request=request, plan=plan, site=site, spec=make_spec(request, plan))


def _job_is_alive(job_id: str) -> bool:
    from hpctrain.launch.job import job_state

    state = job_state(job_id)
    return state is not None and not state.is_final


def refuse_nested_fit() -> None:
    """Refuse ``fit()`` inside a training function. Not collective."""
    from hpctrain.worker import context

    if context.is_active():
        raise ConfigError(
            "fit() was called inside a training function, on every rank. Call it outside, or start "
            "a process of its own for it."
        )
