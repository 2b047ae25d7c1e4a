"""`Request`: what ``fit()`` asks for, and the plan that is made of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import environ
from hpctrain.config import LAUNCHERS, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.home import Home, detect_home
from hpctrain.launch.container import plan_container
from hpctrain.launch.environment_pack import plan_environment_pack
from hpctrain.launch.placement import (
    place_in_share,
    place_in_this_allocation,
    place_on_hosts,
    read_hosts,
    refuse_missing_gpus,
    step_gpu_args,
)
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.argv import slice_srun_args
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import Placement, node_range, place_on_one_node
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.sbatch_options import (
    FIRST_JOB_ONLY,
    merge_directives,
    parse_sbatch_args,
    read_sbatch_variables,
)
from hpctrain.plan.site import Site, load_site, site_srun_args
from hpctrain.plan.spec import RunSpec, WorkerSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.validation_config import ValidationConfig

_LAUNCHER_OF = {
    Home.LOCAL: "local",
    Home.LOGIN: "slurm",
    Home.ALLOCATION: "allocation",
    Home.HOSTS: "mpiexec",
    Home.SPMD: "spmd",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What ``fit()`` asks for."""

    trainer: str
    """Class of the trainer, ``module.Class``."""
    scaling_config: ScalingConfig
    run_config: RunConfig
    worker_spec: WorkerSpec
    resume_from: Path | None
    """Checkpoint of another run to begin with."""
    validation_config: ValidationConfig | None = None
    """How checkpoints are validated beside the training."""

    @property
    def paths(self) -> RunPaths:
        """Where the run lies."""
        assert self.run_config.name is not None
        return RunPaths(Path(self.run_config.storage_path).absolute() / self.run_config.name)

    def named(self) -> Request:
        """Return the request with a directory for the run, wherever this process goes.

        A name is new if the user gave none. The training function may change the working directory
        of this process, to which a storage path may be relative.
        """
        name = self.run_config.name
        if name is None:
            trainer = self.trainer.rpartition(".")[2]
            name = f"{trainer}_{time.strftime('%Y%m%d-%H%M%S')}_{secrets.token_hex(2)}"
        storage = str(Path(self.run_config.storage_path).absolute())
        return replace(self, run_config=replace(self.run_config, name=name, storage_path=storage))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The run that a replay repeats."""

    path: Path
    """Its directory."""
    run_id: str | None
    """What it is known by; None for one of an older version."""
    argv: tuple[str, ...]
    """Command line of its script."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request that is ready to be launched."""

    request: Request
    plan: LaunchPlan
    site: Site
    spec: RunSpec
    replay_of: Origin | None = None
    """The run whose record this repeats; None for the request of a script."""
    continues: bool = False
    """Whether the run goes on by itself after its executor was killed, with what is left of its
    budgets."""
    keeps_code: bool = True
    """Whether the uncommitted changes of the script's tree are kept beside the run; those of trials
    are kept once, by their sweep."""
    why_again: str = ""
    """Why a tuner starts the executor of its trial again; empty where it does not."""

    @functools.cached_property
    def spec_content(self) -> bytes:
        """Content of ``spec.pkl``."""
        return self.spec.to_bytes()


# Which home this is does not change while a process lives, but its signs do: ranks delete
# their launcher's variables.
_home: Home | None = None


def current_home() -> Home:
    """Return which home this process is in. Not collective. Decided once, at first use."""
    global _home
    if _home is None:
        from hpctrain.slurm.probe import can_submit
        from hpctrain.worker.mpi import initialized_world_size

        _home = detect_home(
            environ.environment(),
            mpi_world_size=initialized_world_size(),
            can_submit=can_submit,
        )
    return _home


def choose_launcher(scaling_config: ScalingConfig, run_config: RunConfig) -> str:
    """Return where the ranks are to start.

    Not collective. ``num_workers=0`` is always this interpreter. ``--launcher`` and
    ``HPCTRAIN_LAUNCHER`` win over ``RunConfig(launcher=...)``; where neither speaks, the home is
    detected.
    """
    if scaling_config.num_workers == 0:
        return "inline"
    asked = environ.requested_launcher() or run_config.launcher
    if asked not in LAUNCHERS:
        raise ConfigError(
            f"HPCTRAIN_LAUNCHER={asked!r}. One of {', '.join(map(repr, LAUNCHERS))} is needed."
        )
    if asked == "inline":
        raise ConfigError(
            f"launcher='inline' runs one rank in this interpreter, but num_workers="
            f"{scaling_config.num_workers}. Use num_workers=0."
        )
    if asked != "auto":
        return asked
    home = current_home()
    if home is Home.HOSTS and environ.requested_hostfile() is None and len(read_hosts()) == 1:
        # A job on one machine needs no ssh to it.
        home = Home.LOCAL
    return _LAUNCHER_OF[home]


def override_slurm(request: Request, fields: Mapping[str, Any]) -> Request:
    """Return a request with some fields of its SlurmConfig replaced. Not collective.

    Raises
    ------
    ConfigError
        If SlurmConfig has no such field, or refuses its value.
    """
    scaling = request.scaling_config
    known = [field.name for field in dataclasses.fields(scaling.slurm)]
    if unknown := sorted(fields.keys() - known):
        raise ConfigError(
            f"HPCTRAIN_SLURM names {', '.join(map(repr, unknown))}; the fields of SlurmConfig are "
            f"{', '.join(known)}."
        )
    return replace(request, scaling_config=replace(scaling, slurm=replace(scaling.slurm, **fields)))


def make_plan(
    request: Request,
    launcher: str,
    *,
    share: Mapping[str, AllocatedNode] | None = None,
    job_name: str | None = None,
    tuner_sign: Path | None = None,
) -> tuple[LaunchPlan, Site]:
    """Return on what a request runs. Not collective.

    Parameters
    ----------
    share
        What the run has of nodes of the allocation, beside other runs; None is all of them.
    job_name
        Name of its job, if it has one; None is that of the run.
    tuner_sign
        File that shows that a tuner is at work, which submits the further jobs of the run.
    """
    scaling = request.scaling_config
    site = load_site(scaling.slurm.site)
    # A mistake in it is one in every home.
    parse_sbatch_args(scaling.slurm.sbatch_args)
    directives: dict[str, str | None] = {}
    slots: Mapping[str, int] = {}
    gpu_srun_args: tuple[str, ...] = ()
    if launcher == "slurm":
        refuse_patterns(request.paths)
        site = with_sbatch_variables(site)
        scaling = _with_time(scaling, site)
        job_name = job_name or request.run_config.name
        assert job_name is not None
        placement, directives = _place_job(scaling, site, job_name=job_name)
    else:
        placement, slots, gpu_srun_args = _place(scaling, site, launcher, share)
    mpi = scaling.slurm.mpi
    plan = LaunchPlan(
        launcher=launcher,
        placement=placement,
        job_nodes=node_range(scaling, placement, slots=slots.values()),
        node_slots=slots,
        resize_interval_s=scaling.elastic_resize_monitor_interval_s,
        mpi=site.mpi if mpi == "auto" and launcher in ("slurm", "allocation") else mpi,
        directives={n: v for n, v in directives.items() if n not in FIRST_JOB_ONLY},
        first_job_directives={n: v for n, v in directives.items() if n in FIRST_JOB_ONLY},
        setup=(*site.setup, *scaling.slurm.setup),
        srun_args=(
            *gpu_srun_args,
            *site_srun_args(site, placement, gpu_request=scaling.slurm.gpu_request),
            *scaling.slurm.srun_args,
        ),
        threads_per_task=scaling.num_cpus_per_worker,
        environment=site.environment,
        stop_notice_s=scaling.slurm.notice_s,
        # The job is not that of one run alone.
        requeue=site.requeue and share is None,
        is_slice=share is not None,
        tuner_sign=None if tuner_sign is None else str(tuner_sign),
        container=plan_container(
            scaling.slurm.container,
            launcher=launcher,
            run_dir=request.paths.root,
            resume_from=request.resume_from,
        ),
        environment_pack=plan_environment_pack(scaling.slurm, launcher=launcher),
    )
    return plan, site


def _with_time(scaling: ScalingConfig, site: Site) -> ScalingConfig:
    """Take the site's time limit where the run has none, if it is an end.

    How long before the end the run is asked to leave depends on it.
    """
    time_limit = site.directives.get("time", "")
    if scaling.slurm.time is not None or not time_limit[:1].isdigit():
        return scaling
    return replace(scaling, slurm=replace(scaling.slurm, time=time_limit))


def _place_job(
    scaling: ScalingConfig, site: Site, *, job_name: str
) -> tuple[Placement, dict[str, str | None]]:
    """Return how the ranks lie on nodes of the partition, and the directives of the job."""
    from hpctrain.slurm.probe import place_on_partition

    placement, _ = place_on_partition(
        scaling,
        site,
        needs_answer=not environ.dry_run_requested(),
        meanwhile=_import_what_submits,
    )
    return placement, make_directives(scaling, placement, site, job_name=job_name)


def _place(
    scaling: ScalingConfig, site: Site, launcher: str, share: Mapping[str, AllocatedNode] | None
) -> tuple[Placement, Mapping[str, int], tuple[str, ...]]:
    """Return where workers go that need no job, the slots of nodes, and srun's options for GPUs."""
    if launcher == "allocation" and share is not None:
        placement, slots = place_in_share(scaling, site, share)
        asked = scaling.slurm.gpu_request
        by_task = (site.gpu_request if asked == "auto" else asked) == "gpus-per-task"
        return placement, slots, slice_srun_args(placement, gpus_by_task=by_task)
    if launcher == "allocation":
        placement, slots = place_in_this_allocation(scaling, site)
        return placement, slots, step_gpu_args(placement)
    if launcher == "mpiexec":
        return *place_on_hosts(scaling, site), ()
    if launcher != "spmd":
        refuse_missing_gpus(scaling)
    return place_on_one_node(scaling), {}, ()


def refuse_patterns(paths: RunPaths) -> None:
    """Refuse a run directory whose path Slurm would read as a pattern. Not collective.

    Raises
    ------
    ConfigError
        With the character.
    """
    if found := [character for character in "%\\\n" if character in str(paths.root)]:
        raise ConfigError(
            f"the run directory {str(paths.root)!r} holds {found[0]!r}, but Slurm replaces "
            f"patterns such as %j in the path of a job's log, and takes backslashes away. Choose a "
            f"RunConfig(storage_path=...) without them."
        )


def _import_what_submits() -> None:
    """Import what a submission needs later, and takes as long to import as Slurm to answer."""
    # Where it cannot be imported, the submission says so.
    with contextlib.suppress(Exception):
        from hpctrain.slurm import executor  # noqa: F401


def with_sbatch_variables(site: Site) -> Site:
    """Return a site profile with what the environment asks of sbatch, which wins over it.

    Not collective.
    """
    options, refused = read_sbatch_variables(environ.environment())
    for sentence in refused:
        log(f"warning: {sentence}.")
    merged = merge_directives(site.directives, options)
    return replace(site, directives={name: value or "" for name, value in merged.items()})
