"""`Request`: what ``fit()`` asks for, and the plan that is made of it."""

from __future__ import annotations

import functools
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import environ
from hpctrain.config import LAUNCHERS, RunConfig, ScalingConfig
from hpctrain.environ import Home
from hpctrain.errors import ConfigError
from hpctrain.launch.container import plan_container, ranks_path
from hpctrain.launch.digests import FILES, describe_values, digest_parts
from hpctrain.log import log
from hpctrain.plan.allocation import AllocatedNode, place_in_allocation
from hpctrain.plan.argv import slice_srun_args
from hpctrain.plan.hosts import Host, read_hostfile
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.modules import ModuleFiles, ModuleFinder
from hpctrain.plan.resources import Placement, node_range, place_on_one_node
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.sbatch_options import (
    FIRST_JOB_ONLY,
    merge_directives,
    parse_sbatch_args,
    read_sbatch_variables,
)
from hpctrain.plan.site import Site, load_site, site_srun_args
from hpctrain.plan.sources import MOST_SOURCE_BYTES, pack_sources
from hpctrain.plan.spec import (
    LARGE_PICKLE_BYTES,
    RankSettings,
    RunSpec,
    ValidationSpec,
    WorkerSpec,
    explain_large_pickle,
    make_fingerprint,
    pack,
)
from hpctrain.rundir.paths import RunPaths
from hpctrain.validation_config import ValidationConfig
from hpctrain.worker.bootstrap import visible_gpus
from hpctrain.worker.mpi import initialized_world_size

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
        """Return the request with a name for the run, a new one if the user gave none."""
        if self.run_config.name is not None:
            return self
        trainer = self.trainer.rpartition(".")[2]
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{trainer}_{stamp}_{secrets.token_hex(2)}"
        return replace(self, run_config=replace(self.run_config, name=name))


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

        _home = environ.detect_home(
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
    if home is Home.HOSTS and environ.requested_hostfile() is None and len(_read_hosts()) == 1:
        # A job on one machine needs no ssh to it.
        home = Home.LOCAL
    return _LAUNCHER_OF[home]


def override_slurm(request: Request, fields: Mapping[str, Any]) -> Request:
    """Return a request with some fields of its SlurmConfig replaced. Not collective."""
    scaling = request.scaling_config
    return replace(request, scaling_config=replace(scaling, slurm=replace(scaling.slurm, **fields)))


def make_plan(
    request: Request,
    launcher: str,
    *,
    share: Mapping[str, AllocatedNode] | None = None,
    job_name: str | None = None,
) -> tuple[LaunchPlan, Site]:
    """Return on what a request runs. Not collective.

    Parameters
    ----------
    share
        What the run has of nodes of the allocation, beside other runs; None is all of them.
    job_name
        Name of its job, if it has one; None is that of the run.
    """
    scaling = request.scaling_config
    site = load_site(scaling.slurm.site)
    # A mistake in it is one in every home.
    parse_sbatch_args(scaling.slurm.sbatch_args)
    directives: dict[str, str | None] = {}
    slots: Mapping[str, int] = {}
    gpu_srun_args: tuple[str, ...] = ()
    if launcher == "slurm":
        from hpctrain.slurm.probe import place_on_partition

        refuse_patterns(request.paths)
        site = _with_sbatch_variables(site)
        if scaling.slurm.time is None and site.directives.get("time", "")[:1].isdigit():
            # How long before the end the run is asked to leave depends on it, if it is an end.
            timed = replace(scaling.slurm, time=site.directives["time"])
            scaling = replace(scaling, slurm=timed)
        needs_answer = not environ.dry_run_requested()
        placement, _ = place_on_partition(scaling, site, needs_answer=needs_answer)
        assert request.run_config.name is not None
        directives = make_directives(
            scaling, placement, site, job_name=job_name or request.run_config.name
        )
    elif launcher == "allocation":
        if share is None:
            placement, slots = _place_in_allocation(scaling, site)
            gpu_srun_args = _gpu_srun_args(placement)
        else:
            placement, slots = _place_in_share(scaling, site, share)
            asked = scaling.slurm.gpu_request
            by_task = (site.gpu_request if asked == "auto" else asked) == "gpus-per-task"
            gpu_srun_args = slice_srun_args(placement, gpus_by_task=by_task)
    elif launcher == "mpiexec":
        placement, slots = _place_on_hosts(scaling, site)
    else:
        if launcher != "spmd":
            _refuse_missing_gpus(scaling)
        placement = place_on_one_node(scaling)
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
        container=plan_container(
            scaling.slurm.container,
            launcher=launcher,
            run_dir=request.paths.root,
            resume_from=request.resume_from,
        ),
    )
    return plan, site


def make_spec(
    request: Request,
    plan: LaunchPlan,
    *,
    in_background: bool = False,
    files: ModuleFiles | None = None,
    stops_exactly: bool = False,
) -> RunSpec:
    """Return what every rank runs. Not collective.

    Parameters
    ----------
    in_background
        Whether the executor is to run in a process of its own where there is no job for it.
    files
        The user's modules as they were read for another run of the same code; None reads them now.
    stops_exactly
        Whether ``RunConfig(stop={...})`` ends the run with the report that meets it.

    Raises
    ------
    ConfigError
        If something of it cannot be pickled, or a `hpctrain.data.Dataset` in memory is large.
    """
    scaling, sync = request.scaling_config, request.run_config.sync_config
    cwd = environ.working_directory()
    if plan.launcher != "inline":
        _refuse_large_datasets(request.worker_spec.datasets)
    for callback in request.run_config.callbacks:
        callback.on_submit(request.worker_spec.parameters)
    worker = pack(request.worker_spec, what="the training function")
    if warning := explain_large_pickle(request.worker_spec, worker):
        log(f"warning: {warning}")
    config_class = type(request.worker_spec.backend_config)
    assert request.run_config.name is not None
    spec = request.worker_spec
    rest: dict[str, Any] = {
        "run_config": request.run_config,
        "num_workers": scaling.num_workers,
        "resume_from": request.resume_from,
    }
    validation = _make_validation_spec(request, plan)
    finder = ModuleFinder(files)
    digests, modules = digest_parts(spec, worker, **rest, validation=validation, finder=finder)
    executor = _pack_for_executor(request, plan, must=in_background)
    return RunSpec(
        trainer=request.trainer,
        backend=f"{config_class.__module__}.{config_class.__qualname__}",
        fingerprint=fingerprint_of(request, worker, digests),
        digests=digests,
        modules=modules,
        values=describe_values(spec, **rest),
        settings=RankSettings(
            name=request.run_config.name,
            cwd=cwd,
            sys_path=ranks_path([str(Path(p).absolute()) for p in sys.path], plan.container),
            cpus_per_worker=scaling.num_cpus_per_worker,
            gpus_per_worker=scaling.num_gpus_per_worker,
            commit_timeout_s=sync.sync_timeout,
            scratch_dir=None if sync.scratch_dir is None else str(sync.scratch_dir),
            sync_artifacts=sync.sync_artifacts,
            max_writers=sync.max_writers,
            max_bytes_per_s=sync.max_bytes_per_s,
            in_container=plan.container is not None,
            preload=_preload_of(request.worker_spec.backend_config),
            stops_at=_goals_of(request.run_config) if stops_exactly else None,
        ),
        worker=worker,
        executor=executor,
        sources=_pack_sources(request.run_config, finder, executor),
        validation=validation,
    )


def _goals_of(run_config: RunConfig) -> Mapping[str, float] | None:
    return dict(run_config.stop) if isinstance(run_config.stop, Mapping) else None


def _preload_of(backend_config: Any) -> tuple[str, ...]:
    """Return the modules that a backend lets one process import for all ranks of a node."""
    names = getattr(backend_config, "preload", ())
    if not isinstance(names, (tuple, list)) or not all(map(_is_module_name, names)):
        raise ConfigError(
            f"{type(backend_config).__name__}.preload is {names!r}. Names of modules are needed, "
            f"such as ('torch', 'torch.distributed')."
        )
    return tuple(names)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def fingerprint_of(request: Request, worker: bytes, digests: Mapping[str, str]) -> str:
    """Return the digest that identifies a request. Not collective.

    Parameters
    ----------
    worker
        What ranks open.
    digests
        Those of the parts, by name.
    """
    workers = request.scaling_config.num_workers
    # The same as in runs of older versions: what else decides has digests of its own.
    files = (digests[name].encode() for name in digests if name == FILES)
    return make_fingerprint(request.trainer.encode(), str(workers).encode(), worker, *files)


def _pack_sources(run_config: RunConfig, finder: ModuleFinder, executor: bytes) -> bytes:
    """Return the user's modules as they are now, those of callbacks among them."""
    if not run_config.snapshot:
        return b""
    finder.follow(executor)
    packed = pack_sources(finder.sources) if finder.is_complete else b""
    if finder.sources and not packed:
        log(
            f"note: your {len(finder.sources)} modules are too many, or larger than "
            f"{MOST_SOURCE_BYTES // 2**20} MiB together, so the run does not keep them: restarts, "
            f"and jobs that wait, import them as they are then."
        )
    return packed


def _make_validation_spec(request: Request, plan: LaunchPlan) -> ValidationSpec | None:
    config = request.validation_config
    if config is None:
        return None
    from hpctrain.launch.validation_plan import plan_validation_job

    job = plan_validation_job(config, request.scaling_config, plan, run_dir=request.paths.root)
    if job is not None:
        refuse_patterns(request.paths)
    return ValidationSpec(
        fn=pack(config.fn, what="the validation function"),
        task_config=config.task_config,
        use_gpu=config.use_gpu,
        wait_timeout_s=config.wait_timeout_s,
        slurm_config=config.slurm_config,
        resources=config.resources,
        max_jobs=config.max_jobs,
        job=job,
        container=plan.container,
    )


def _pack_for_executor(request: Request, plan: LaunchPlan, *, must: bool) -> bytes:
    """Return what a job's executor opens, and ``restore()``; empty where only the latter could."""
    content = request.run_config, plan, request.resume_from
    try:
        return pack(content, what="RunConfig (callbacks, stop)")
    except ConfigError:
        if must or plan.launcher == "slurm":
            raise
        # The executor is in this process, and needs no pickle.
        return b""


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


def _with_sbatch_variables(site: Site) -> Site:
    """Return a site profile with what the environment asks of sbatch, which wins over it."""
    options, refused = read_sbatch_variables(environ.environment())
    for sentence in refused:
        log(f"warning: {sentence}.")
    merged = merge_directives(site.directives, options)
    return replace(site, directives={name: value or "" for name, value in merged.items()})


def _refuse_large_datasets(datasets: Mapping[str, Any]) -> None:
    for name, dataset in datasets.items():
        size = getattr(dataset, "memory_bytes", 0)
        if size > LARGE_PICKLE_BYTES:
            raise ConfigError(
                f"dataset {name!r} has {size / 2**20:.0f} MiB in memory, and more than "
                f"{LARGE_PICKLE_BYTES // 2**20} MiB are not sent to the ranks. Write it to a file "
                f"that they see, with write_hdf5() or write_parquet(), and give what is read there."
            )


def _refuse_missing_gpus(scaling: ScalingConfig) -> None:
    """Find out before the start whether this machine has a GPU for each worker."""
    visible, needed = visible_gpus(), scaling.total_resources.get("GPU", 0)
    if len(visible) >= needed:
        return
    mask = environ.variable("CUDA_VISIBLE_DEVICES")
    why = "" if mask is None else f" (CUDA_VISIBLE_DEVICES={mask})"
    fits = len(visible) // scaling.num_gpus_per_worker
    way_out = f"Use num_workers={fits}" if fits else "Set use_gpu=False"
    raise ConfigError(
        f"num_workers={scaling.num_workers} with use_gpu=True needs {needed} GPUs on this machine, "
        f"which shows {len(visible)}{why}. {way_out}, or run it where there are more: "
        f"hpctrain submit, on the login node of a cluster."
    )


def _place_in_allocation(scaling: ScalingConfig, site: Site) -> tuple[Placement, dict[str, int]]:
    from hpctrain.slurm.probe import allocation_nodes

    nodes = {
        name: replace(node, gpus=site.gpus_per_node) if node.gpus is None else node
        for name, node in allocation_nodes(with_gpus=scaling.use_gpu).items()
    }
    return place_in_allocation(scaling, nodes, cpus_per_gpu=site.cpus_per_gpu)


def _place_in_share(
    scaling: ScalingConfig, site: Site, share: Mapping[str, AllocatedNode]
) -> tuple[Placement, dict[str, int]]:
    placement, slots = place_in_allocation(scaling, share, cpus_per_gpu=site.cpus_per_gpu)
    # Without names it could be on other nodes.
    return replace(placement, nodes=placement.nodes or tuple(slots)), slots


def _gpu_srun_args(placement: Placement) -> tuple[str, ...]:
    """Return the options of srun for GPUs in an allocation with a total number of them."""
    others = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
    if environ.variable("SLURM_GPUS") is None or any(map(environ.variable, others)):
        return ()
    # A step that may overlap others, or has some of the nodes only, is refused the total
    # ("Insufficient GRES available in allocation", measured with Slurm 22.05).
    per_task = placement.gpus_per_task
    return (f"--gpus-per-task={per_task}" if per_task else "--gres=none",)


def _place_on_hosts(scaling: ScalingConfig, site: Site) -> tuple[Placement, dict[str, int]]:
    cpus = scaling.num_cpus_per_worker
    nodes = {
        # Its slots are all that is known of a host, so there is no room beside them.
        host.name: AllocatedNode(tasks=host.slots, cpus=host.slots and host.slots * cpus)
        for host in _read_hosts()
    }
    placement, slots = place_in_allocation(scaling, nodes, cpus_per_gpu=site.cpus_per_gpu)
    # Without names it is on all of them.
    return replace(placement, nodes=placement.nodes or tuple(slots)), slots


def _read_hosts() -> tuple[Host, ...]:
    path = environ.hostfile(environ.environment())
    if path is None:
        raise ConfigError(
            "launcher='mpiexec' needs to know the hosts, and there is no job of PBS, LSF or Grid "
            "Engine here that names them. Give them with: hpctrain run --hostfile FILE SCRIPT"
        )
    return read_hostfile(Path(path))
