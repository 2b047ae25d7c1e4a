"""Begin a run again from its record: what ``hpctrain replay`` launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import environ
from hpctrain.callback import begin_submission
from hpctrain.config import LAUNCHERS, RunConfig
from hpctrain.errors import ConfigError
from hpctrain.home import hostfile
from hpctrain.launch.container import plan_container, ranks_path
from hpctrain.launch.environment_pack import plan_environment_pack
from hpctrain.launch.record import read_origin
from hpctrain.launch.replay_changes import Changes, find_changes
from hpctrain.launch.replay_name import taken_name
from hpctrain.launch.replay_record import load_replayable, module_path, read_replayable
from hpctrain.launch.request import (
    Origin,
    Request,
    Submission,
    make_plan,
    refuse_patterns,
)
from hpctrain.launch.run_environment import Variables, read_variables, select_variables
from hpctrain.launch.run_seed import seed_of
from hpctrain.launch.run_spec import fingerprint_of, pack_first_start
from hpctrain.launch.stored import StoredRun
from hpctrain.launch.validation_plan import plan_validation_job
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.site import Site, load_site
from hpctrain.plan.spec import RunSpec, ValidationSpec, pack
from hpctrain.rundir.paths import RunPaths


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A run that is ready to be begun again."""

    submission: Submission
    """What is launched."""
    changes: Changes
    """What is the same, and what is not."""
    resumes: bool
    """Whether it is there already, from an earlier call with its name."""


@contextmanager
def prepared_replay(
    origin: RunPaths,
    *,
    name: str | None = None,
    storage_path: str | None = None,
    slurm: Mapping[str, Any],
    repeats_environment: bool = True,
) -> Iterator[Replay]:
    """Prepare a replay; the caller launches it before it leaves.

    Not collective. This process takes over the working directory, the modules and the recorded
    variables of the run.

    Parameters
    ----------
    origin
        The run to repeat.
    name
        Of the new run; None makes one of the old name: ``NAME-replay-1``. It is taken while the
        caller launches the run, and free again if it does not.
    storage_path
        Of the new run; None is that of the old one.
    slurm
        Fields of SlurmConfig that replace the recorded ones: partition, account, qos, time. For a
        run that was no job, also nodes and tasks_per_node.
    repeats_environment
        Whether the recorded variables are set as they were.

    Raises
    ------
    ConfigError
        If the run cannot be replayed, with the reason and the next step.
    """
    storage = origin.root.parent
    if storage_path is not None:
        # It refuses a URL.
        storage = Path(RunConfig(storage_path=storage_path).storage_path).absolute()
    if (hostfile := environ.requested_hostfile()) is not None:
        # Before the working directory changes.
        environ.request_hostfile(Path(hostfile))
    plan, spec = read_replayable(origin)
    launcher = _choose_launcher(origin, plan["launch_plan"]["launcher"])
    if slurm and launcher != "slurm":
        raise ConfigError(
            f"{', '.join(sorted(slurm))} given, but this replay is no job: its launcher is "
            f"{launcher!r}. --launcher slurm submits it."
        )
    variables = Variables(
        recorded=read_variables(plan),
        here=select_variables(environ.environment()),
        repeats=repeats_environment,
    )
    # Before the modules of the run are imported: they may read some.
    variables.repeat()
    stored = load_replayable(origin, plan, spec)
    with taken_name(storage, origin.root.name, name) as chosen:
        yield _prepare(
            origin,
            plan,
            stored,
            storage=storage,
            name=chosen,
            launcher=launcher,
            slurm=slurm,
            variables=variables,
        )


def _prepare(
    origin: RunPaths,
    plan: Mapping[str, Any],
    stored: StoredRun,
    *,
    storage: Path,
    name: str,
    launcher: str,
    slurm: Mapping[str, Any],
    variables: Variables,
) -> Replay:
    run_config = replace(stored.run_config, name=name, storage_path=str(storage), existing="auto")
    scaling = stored.scaling_config()
    request = Request(
        trainer=stored.spec.trainer,
        scaling_config=replace(scaling, slurm=replace(scaling.slurm, **slurm)),
        run_config=run_config,
        worker_spec=stored.worker_spec,
        resume_from=stored.resume_from,
        validation_config=stored.validation_config,
    )
    argv = tuple(map(str, plan.get("argv", ())))
    again = Origin(path=origin.root, run_id=plan.get("run_id"), argv=argv)
    resumes = request.paths.status.exists()
    if resumes:
        _refuse_another_run(request.paths, again)
    launch_plan, site = _plan(request, plan, stored, launcher, slurm)
    changes = find_changes(
        plan,
        stored,
        request,
        launch_plan,
        variables=variables,
        asks_slurm=launcher == "slurm" and not environ.dry_run_requested(),
    )
    submission = Submission(
        request=request,
        plan=launch_plan,
        site=site,
        spec=_make_spec(request, stored, launch_plan, changes),
        replay_of=again,
    )
    return Replay(submission=submission, changes=changes, resumes=resumes)


def _plan(
    request: Request,
    plan: Mapping[str, Any],
    stored: StoredRun,
    launcher: str,
    slurm: Mapping[str, Any],
) -> tuple[LaunchPlan, Site]:
    """Return on what the replay runs: as the run did, where that names no machines."""
    recorded = stored.launch_plan
    if launcher != "slurm" or recorded is None or recorded.launcher != "slurm":
        return make_plan(request, launcher)
    for name in ("nodes", "tasks_per_node"):
        if name in slurm:
            raise ConfigError(
                f"SlurmConfig({name}={slurm[name]}): the replay of a job keeps its nodes and the "
                f"workers of each. Leave it out."
            )
    refuse_patterns(request.paths)
    directives = dict(recorded.directives)
    name = stored.spec.settings.name
    # Of a run, and of a trial of a sweep.
    if directives.get("job-name") in (name, f"{stored.plan.parent.parent.name}-{name}"):
        directives["job-name"] = request.paths.root.name
    directives.update(slurm)
    if (account := slurm.get("account")) is not None:
        directives["account"] = _complete_account(
            account, request.scaling_config.slurm.site, like=recorded.directives.get("account")
        )
    launch_plan = replace(
        recorded,
        directives=directives,
        # What the first job waited for is over, or was about that job.
        first_job_directives={},
        # It is of no sweep.
        tuner_sign=None,
        container=plan_container(recorded.container, launcher=launcher, run_dir=request.paths.root),
        environment_pack=plan_environment_pack(request.scaling_config.slurm, launcher=launcher),
        stop_notice_s=request.scaling_config.slurm.notice_s if slurm else recorded.stop_notice_s,
    )
    return launch_plan, Site(name=str(plan.get("site", "generic")))


def _complete_account(account: str, site: str | None, *, like: str | None) -> str:
    """Return an account with the site's suffix; where its profile is gone, with another's."""
    try:
        return load_site(site).complete_account(account)
    except ConfigError:
        _, at, suffix = (like or "").partition("@")
        return Site(account_suffix=at + suffix).complete_account(account)


def _make_spec(
    request: Request, stored: StoredRun, launch_plan: LaunchPlan, changes: Changes
) -> RunSpec:
    """Return what every rank runs: the recorded bytes, under another name."""
    spec = stored.spec
    begin_submission(request.run_config.callbacks, request.worker_spec.parameters)
    content = request.run_config, launch_plan, request.resume_from
    sys_path = ranks_path(
        module_path(spec.settings.sys_path, recorded_python=changes.python), launch_plan.container
    )
    return replace(
        spec,
        fingerprint=fingerprint_of(request, spec.worker, changes.digests),
        digests=changes.digests,
        modules=changes.modules,
        settings=replace(
            spec.settings,
            name=request.paths.root.name,
            seed=spec.settings.seed
            if spec.settings.seed is not None
            else seed_of(request, launch_plan.launcher),
            sys_path=sys_path,
            in_container=launch_plan.container is not None
            or launch_plan.environment_pack is not None,
        ),
        executor=pack(content, what="RunConfig (callbacks, stop)"),
        validation=_validation(request, stored, launch_plan),
        first_start=pack_first_start(request, launch_plan, sys_path),
    )


def _validation(
    request: Request, stored: StoredRun, launch_plan: LaunchPlan
) -> ValidationSpec | None:
    validation, name = stored.spec.validation, request.paths.root.name
    if validation is None or request.validation_config is None:
        return None
    recorded = stored.launch_plan
    if validation.job is None or recorded is None or recorded.launcher != launch_plan.launcher:
        scaling = request.scaling_config
        job = plan_validation_job(
            request.validation_config, scaling, launch_plan, run_dir=request.paths.root
        )
        return replace(validation, job=job, container=launch_plan.container)
    directives = {**validation.job.directives, "job-name": f"{name}-validation"}
    slurm, account = request.validation_config.slurm_config, launch_plan.directives.get("account")
    if account is not None and (slurm is None or slurm.account is None):
        # It is that of the training, which may be another one now.
        directives["account"] = account
    container = plan_container(
        validation.job.container, launcher=launch_plan.launcher, run_dir=request.paths.root
    )
    job = replace(validation.job, directives=directives, container=container)
    return replace(validation, job=job, container=launch_plan.container)


def _choose_launcher(origin: RunPaths, recorded: str) -> str:
    """Return where the ranks start: where those of the run did, or where the user says."""
    asked = environ.requested_launcher() or "auto"
    launcher = recorded if asked == "auto" else asked
    if launcher not in LAUNCHERS or launcher in ("spmd", "inline"):
        raise ConfigError(
            f"a replay with launcher {launcher!r}: it starts its own ranks. One of local, "
            f"allocation, slurm and mpiexec is needed."
        )
    if environ.in_rank():
        return "local"
    if launcher == "allocation":
        if not environ.variable("SLURM_JOB_ID"):
            raise ConfigError(
                f"a replay of {origin.root} with launcher 'allocation' needs an allocation, and "
                f"there is none here. Replay it in one ('salloc', or in your batch script), or as "
                f"a job of its own: --launcher slurm, with --partition, --account and --time as "
                f"your script had."
            )
        from hpctrain.slurm.job import refuse_ended_allocation

        refuse_ended_allocation()
    if launcher == "mpiexec" and hostfile(environ.environment()) is None:
        raise ConfigError(
            f"{origin.root} ran on the hosts of a file, and none is named here. Set "
            f"HPCTRAIN_HOSTFILE=FILE, or replay it in a job of PBS, LSF or Grid Engine."
        )
    if launcher == "slurm" and not environ.dry_run_requested():
        from hpctrain.slurm.probe import can_submit

        if not can_submit():
            raise ConfigError(
                f"{origin.root} was a job of Slurm, and this machine cannot submit one: sbatch is "
                f"not on PATH, or not configured. Load Slurm's module, or run it here: "
                f"--launcher local."
            )
    return launcher


def _refuse_another_run(paths: RunPaths, again: Origin) -> None:
    """Refuse a name whose run is no replay of this one."""
    origin = read_origin(paths) or {}
    same_id = again.run_id is not None and origin.get("run_id") == again.run_id
    if same_id or (again.run_id is None and origin.get("path") == str(again.path)):
        return
    raise ConfigError(
        f"run {paths.root.name!r} in {paths.root.parent} is there already, and is no replay of "
        f"{again.path}. Choose another --name, or leave it out."
    )
