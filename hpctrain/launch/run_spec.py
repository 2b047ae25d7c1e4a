"""The `RunSpec` of a request: what every rank runs, pickled, with the digests that identify it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain import environ
from hpctrain.callback import begin_submission
from hpctrain.config import RunConfig
from hpctrain.errors import ConfigError
from hpctrain.launch.container import ranks_path
from hpctrain.launch.digests import FILES, describe_values, digest_parts
from hpctrain.launch.environment_pack import ranks_path_with_pack
from hpctrain.launch.request import Request, refuse_patterns
from hpctrain.launch.run_seed import seed_of
from hpctrain.log import log
from hpctrain.metric_names import COUNTED
from hpctrain.plan.launch_plan import FirstStart, LaunchPlan
from hpctrain.plan.modules import ModuleFiles, ModuleFinder, own_places
from hpctrain.plan.sources import MOST_SOURCE_BYTES, pack_sources
from hpctrain.plan.spec import (
    LARGE_PICKLE_BYTES,
    RankSettings,
    RunSpec,
    ValidationSpec,
    explain_large_pickle,
    make_fingerprint,
    pack,
)


def make_spec(
    request: Request,
    plan: LaunchPlan,
    *,
    in_background: bool = False,
    files: ModuleFiles | None = None,
    stops_exactly: bool = False,
    awaits_decisions: bool = False,
) -> RunSpec:
    """Return what every rank runs. Not collective.

    Parameters
    ----------
    in_background
        Whether the executor is to run in a process of its own where there is no job for it.
    files
        The user's modules as they were read for another run of the same code; None reads them now.
    stops_exactly
        Whether ``RunConfig(stop=...)`` ends the run with the report that meets it.
    awaits_decisions
        Whether a tuner decides on each report before the next one begins.

    Raises
    ------
    ConfigError
        If something of it cannot be pickled, or a `hpctrain.data.Dataset` in memory is large.
    """
    cwd = environ.working_directory()
    if plan.launcher != "inline":
        _refuse_large_datasets(request.worker_spec.datasets)
    begin_submission(request.run_config.callbacks, request.worker_spec.parameters)
    worker = pack(request.worker_spec, what="the training function")
    if warning := explain_large_pickle(request.worker_spec, worker):
        log(f"warning: {warning}")
    config_class = type(request.worker_spec.backend_config)
    spec = request.worker_spec
    rest: dict[str, Any] = {
        "run_config": request.run_config,
        "num_workers": request.scaling_config.num_workers,
        "resume_from": request.resume_from,
    }
    validation = _make_validation_spec(request, plan)
    finder = ModuleFinder(files)
    digests, modules = digest_parts(spec, worker, **rest, validation=validation, finder=finder)
    executor = _pack_for_executor(request, plan, must=in_background)
    sys_path = ranks_path_with_pack(
        ranks_path([str(Path(p).absolute()) for p in sys.path], plan.container),
        plan.environment_pack,
    )
    return RunSpec(
        trainer=request.trainer,
        backend=f"{config_class.__module__}.{config_class.__qualname__}",
        fingerprint=fingerprint_of(request, worker, digests),
        digests=digests,
        modules=modules,
        values=describe_values(spec, **rest),
        settings=_make_settings(
            request,
            plan,
            cwd=cwd,
            sys_path=sys_path,
            stops_exactly=stops_exactly,
            awaits_decisions=awaits_decisions or (stops_exactly and not _see_goals(request)),
        ),
        worker=worker,
        executor=executor,
        sources=_pack_sources(request.run_config, finder, executor),
        validation=validation,
        first_start=pack_first_start(request, plan, sys_path),
    )


def _make_settings(
    request: Request,
    plan: LaunchPlan,
    *,
    cwd: str,
    sys_path: tuple[str, ...],
    stops_exactly: bool,
    awaits_decisions: bool,
) -> RankSettings:
    scaling, sync = request.scaling_config, request.run_config.sync_config
    assert request.run_config.name is not None
    return RankSettings(
        name=request.run_config.name,
        cwd=cwd,
        sys_path=sys_path,
        cpus_per_worker=scaling.num_cpus_per_worker,
        gpus_per_worker=scaling.num_gpus_per_worker,
        commit_timeout_s=sync.sync_timeout,
        scratch_dir=None if sync.scratch_dir is None else str(sync.scratch_dir),
        sync_artifacts=sync.sync_artifacts,
        max_writers=sync.max_writers,
        max_bytes_per_s=sync.max_bytes_per_s,
        in_container=plan.container is not None or plan.environment_pack is not None,
        preload=_modules_of(request.worker_spec.backend_config, "preload"),
        preload_for_trials=_modules_of(request.worker_spec.backend_config, "preload_for_trials"),
        stops_at=_goals_of(request.run_config) if stops_exactly else None,
        seed=seed_of(request, plan.launcher),
        awaits_decisions=awaits_decisions,
    )


def pack_first_start(request: Request, plan: LaunchPlan, sys_path: Sequence[str]) -> bytes:
    """Return what starts agents and ranks before the executor of a job opens all else.

    Not collective.

    Parameters
    ----------
    sys_path
        Module path of the ranks.
    """
    if plan.launcher != "slurm":
        return b""
    run_config = request.run_config
    first = FirstStart(
        plan=plan,
        log_to_file=run_config.log_to_file,
        node_timeout_s=run_config.failure_config.node_timeout_s,
        own_places=own_places(sys_path),
    )
    return pack(first, what="the plan")


def _goals_of(run_config: RunConfig) -> Mapping[str, float] | None:
    return dict(run_config.stop) if isinstance(run_config.stop, Mapping) else None


def _see_goals(request: Request) -> bool:
    """Return whether each rank sees by itself which report meets the stop criterion."""
    stop = request.run_config.stop
    if not isinstance(stop, Mapping):
        return stop is None
    # The metrics of rank 0 count, and the seconds that the executor counts.
    of_all, seconds = COUNTED[:2], COUNTED[2:]
    is_alone = request.scaling_config.num_workers == 1
    return all(name in of_all or (is_alone and name not in seconds) for name in stop)


def _modules_of(backend_config: Any, attribute: str) -> tuple[str, ...]:
    """Return the modules that a backend lets one process import for all ranks of a node."""
    names = getattr(backend_config, attribute, ())
    if not isinstance(names, (tuple, list)) or not all(map(_is_module_name, names)):
        raise ConfigError(
            f"{type(backend_config).__name__}.{attribute} is {names!r}. Names of modules are "
            f"needed, such as ('torch', 'torch.distributed')."
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


def _refuse_large_datasets(datasets: Mapping[str, Any]) -> None:
    for name, dataset in datasets.items():
        size = getattr(dataset, "memory_bytes", 0)
        if size > LARGE_PICKLE_BYTES:
            raise ConfigError(
                f"dataset {name!r} has {size / 2**20:.0f} MiB in memory, and more than "
                f"{LARGE_PICKLE_BYTES // 2**20} MiB are not sent to the ranks. Write it to a file "
                f"that they see, with write_hdf5() or write_parquet(), and give what is read there."
            )
