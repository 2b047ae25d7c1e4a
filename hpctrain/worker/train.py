"""Run a training function on this rank, in whichever home."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.backend import Backend, BackendContext
from hpctrain.checkpoint_files import metadata_of_run
from hpctrain.control import wire
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.plan.spec import RankSettings, RunSpec, WorkerSpec
from hpctrain.plan.visibility import explain_invisible
from hpctrain.rundir.paths import RunPaths
from hpctrain.train_function import refuse_unrun
from hpctrain.worker.address import find_address
from hpctrain.worker.assignment import assign_datasets
from hpctrain.worker.bootstrap import gpus_of_ranks, visible_gpus
from hpctrain.worker.context import ActiveWorker, activate
from hpctrain.worker.node_socket import node_name
from hpctrain.worker.report import Session
from hpctrain.worker.report_count import LeaveTraining
from hpctrain.worker.train_context import TrainContext
from hpctrain.world import Communicator, World

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor


def settle(settings: RankSettings, *, sources: bytes = b"", says_changes: bool = True) -> None:
    """Give this process the driver's working directory, module path and modules. Not collective.

    Parameters
    ----------
    sources
        The user's modules as they were; empty to import them as they are.
    says_changes
        Whether this process logs which of them have changed since.
    """
    try:
        os.chdir(settings.cwd)
    except OSError as error:
        raise ConfigError(
            explain_invisible(
                f"{node_name()} does not see", f"the working directory {settings.cwd}"
            )
        ) from error
    sys.path[:] = [*settings.sys_path, *(p for p in sys.path if p not in settings.sys_path)]
    if sources:
        from hpctrain.worker.pinned import pin_sources

        pin_sources(sources, says_changes=says_changes)


def run_training(
    run_spec: RunSpec,
    *,
    paths: RunPaths,
    session: Session,
    comm: Communicator,
    on_phase: Callable[[str], None],
) -> Any:
    """Open the run's own part, set the backend up, and call the training function. Collective.

    Returns
    -------
    Any
        What the training function returned.
    """
    settings = run_spec.settings
    on_phase("importing")
    worker_spec: WorkerSpec = spec.unpack(run_spec.worker)
    gpu_ids = gpus_of_ranks(session.world, comm, settings.gpus_per_worker)
    backend_context = BackendContext(
        world=session.world,
        comm=comm,
        cpus_per_worker=settings.cpus_per_worker,
        gpu_ids=gpu_ids,
        visible_gpu_ids=visible_gpus(),
        address=find_address(session.world, comm),
    )
    preprocessor = _fit_preprocessor(worker_spec, session, comm, on_phase)
    worker = ActiveWorker(
        context=TrainContext(
            world=session.world,
            name=settings.name,
            storage=paths.root,
            metadata=worker_spec.metadata,
            gpu_ids=gpu_ids,
        ),
        session=session,
        comm=comm,
        datasets=worker_spec.datasets,
        datasets_to_split=worker_spec.datasets_to_split,
        preprocessor=preprocessor,
        assigned=assign_datasets(worker_spec, session.world, comm, preprocessor),
        validation=None if run_spec.validation is None else run_spec.validation.task_config,
    )
    if worker_spec.metadata:
        session.parts.beside.append(metadata_of_run(worker_spec.metadata))
    _set_up_session(session, settings)
    config = worker_spec.backend_config
    backend = config.backend_cls()
    with contextlib.ExitStack() as at_end, activate(worker), contextlib.closing(session):
        at_end.callback(backend_context.take_back)
        at_end.callback(backend.release)
        on_phase("backend")
        backend.on_start(backend_context, config)
        backend.on_training_start(backend_context, config)
        on_phase("training")
        begun = session.reports
        value = _call(worker_spec, backend)
        if session.reports == begun:
            refuse_unrun(value)
        session.drain()
        on_phase("shutdown")
        backend.on_shutdown(backend_context, config)
    return value


def _call(worker_spec: WorkerSpec, backend: Backend) -> Any:
    """Call the training function, and return what it returned: None if it was left."""
    try:
        if worker_spec.takes_config:
            return worker_spec.train_loop(dict(worker_spec.train_loop_config or {}))
        return worker_spec.train_loop()
    except LeaveTraining:
        # All ranks leave at the same report, so what follows is still collective.
        return None
    except Exception as error:
        if (explained := backend.explain(error)) is None:
            raise
        raise explained from error


def _set_up_session(session: Session, settings: RankSettings) -> None:
    """Let a session write and stop as the run's settings say."""
    # Where all may write at a time, no rank need ask.
    limited = (settings.max_writers or session.world.world_size) < session.world.world_size
    session.writing.limit(
        max_writers=settings.max_writers if limited else None,
        max_bytes_per_s=settings.max_bytes_per_s,
    )
    if settings.stops_at:
        session.stop_exactly(settings.stops_at)
    if settings.awaits_decisions:
        session.await_decisions()
    if settings.scratch_dir is not None:
        session.parts.use_scratch(
            environ.expand_path(settings.scratch_dir), artifacts=settings.sync_artifacts
        )


def _fit_preprocessor(
    worker_spec: WorkerSpec,
    session: Session,
    comm: Communicator,
    on_phase: Callable[[str], None],
) -> Preprocessor | None:
    if worker_spec.preprocessor is None:
        return None
    from hpctrain.preprocessors.storage import call_digest, to_files
    from hpctrain.preprocessors.training import fit_for_training

    on_phase("preprocessing")
    resumed = session.checkpoint
    # Before fitting, which may change it.
    made_by = call_digest(worker_spec.preprocessor) if comm.rank == 0 else None
    fitted = fit_for_training(
        worker_spec.preprocessor,
        worker_spec.datasets,
        comm=comm,
        checkpoint=None if resumed is None else resumed.path,
        heartbeat=session.heartbeat,
    )
    # skops writes the same object to other bytes each time, and parts of a checkpoint are compared.
    files = to_files(fitted, made_by=made_by) if comm.rank == 0 else None
    session.parts.beside.append(comm.bcast(files))
    return fitted


def export_thread_counts(settings: RankSettings) -> None:
    """Let libraries that are loaded from now on compute with this rank's CPUs. Not collective."""
    from hpctrain.worker.threads import thread_variables

    environ.export(thread_variables(settings.cpus_per_worker))


def pack_return_value(world: World, value: Any) -> bytes:
    """Return what rank 0's training function returned, pickled; empty for None and other ranks.

    Not collective. What cannot be pickled or sent is dropped, with a line in the log: the training
    itself went well.
    """
    if world.world_rank != 0 or value is None:
        return b""
    try:
        return spec.pack(value, what="the return value of rank 0", max_bytes=wire.MAX_CONTENT_BYTES)
    except ConfigError as error:
        log(f"{error} It is dropped.")
        return b""
