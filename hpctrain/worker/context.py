"""What a training function calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode, ReportedCheckpoint
from hpctrain.errors import ConfigError, WorkerContextError
from hpctrain.loop_time import CHECKPOINT, count_in
from hpctrain.worker.active_worker import ActiveWorker as ActiveWorker
from hpctrain.worker.train_context import PreemptionInfo, TrainContext

if TYPE_CHECKING:
    from hpctrain.validation_task_config import ValidationTaskConfig
    from hpctrain.worker.upload import UploadFunction


_active: ActiveWorker | None = None


@contextmanager
def activate(worker: ActiveWorker) -> Iterator[None]:
    """Let the functions of this module work, for the time of a training function."""
    global _active
    _active = worker
    loop_time = worker.session.loop_time
    loop_time.start()
    count_in(loop_time)
    try:
        yield
    finally:
        _active = None
        count_in(None)


def is_active() -> bool:
    """Return whether a training function runs in this process. Not collective."""
    return _active is not None


def active_worker(caller: str) -> ActiveWorker:
    """Return the running worker. Not collective.

    Raises
    ------
    WorkerContextError
        If no training function runs in this process.
    """
    if _active is None:
        raise WorkerContextError(
            f"{caller} was called outside of a training function. It works inside the function "
            f"that a trainer runs on its workers, and only in the worker's own process."
        )
    return _active


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: UploadFunction | None = None,
    validation: bool | ValidationTaskConfig = False,
) -> None:
    """Report metrics, and a checkpoint with them or not.

    Every rank must report equally often. Without a checkpoint no rank waits for another: rank 0's
    metrics are appended to ``metrics.jsonl`` before this returns, and survive a kill. With a
    checkpoint on any rank, what the ranks saved is merged into one checkpoint; the ranks that gave
    a part wait until it is complete, which takes until every rank has made this report, unless they
    gave it ASYNC. A report may first wait until it is decided whether the run stops before it: all
    ranks agree on that, and in a sweep its scheduler decides.

    Parameters
    ----------
    metrics
        Names and numbers; lists, dicts and strings too. Rank 0's are kept; callbacks see all.
    checkpoint
        This rank's part. Its directory stays the caller's, untouched; a directory from
        `checkpoint_dir` is taken as it is, without a copy. A file that several ranks give is kept
        from the lowest rank.
    checkpoint_dir_name
        Name of the checkpoint in ``checkpoints/``, of which each has its own; by default the number
        of the report. The lowest contributing rank's counts. Names do not order checkpoints:
        the newest is that of the last report.
    checkpoint_upload_mode
        With ASYNC this returns at once, unless two checkpoints of this rank are under way: a third
        waits for the first. Copy, digest and commit go on in a thread, in order, while the
        directory must not change: keep it, or use `checkpoint_dir`. What goes wrong is raised by
        the next ``report()``, once that is made, or when the training function returns, which waits
        for all.
    delete_local_checkpoint_after_upload
        Whether the caller's directory is deleted once the checkpoint is committed. None is False,
        in every mode.
    checkpoint_upload_fn
        Copies the part instead of hpctrain. It is given the checkpoint and a directory, relative to
        ``get_context().get_storage()``, which exists and is empty; it fills that, and returns it
        as a Checkpoint.
    validation
        Whether the checkpoint is validated beside the training, once it is committed, by the
        function of ``ValidationConfig(fn=...)``; a ValidationTaskConfig has arguments for it. Any
        rank may ask, with a part of the checkpoint or without; where ranks ask for different
        validations, the lowest one's counts, and a warning names the ranks.

    Raises
    ------
    ConfigError
        If the metrics are not a dict, or hold tensors; if the name is impossible; if a validation
        is wanted, and there is no checkpoint or no ValidationConfig.
    CheckpointError
        If the checkpoint could not be written (a full disk) or committed. Every rank that gave a
        part gets the error. The report has been made: a function that catches it on all ranks may
        continue.
    WorkerContextError
        Outside of a training function, or in a process that it has forked.
    """
    worker = active_worker("report()")
    if os.getpid() != worker.pid:
        raise WorkerContextError(
            f"report() was called in process {os.getpid()}, which the worker, process "
            f"{worker.pid}, has forked. Return its values to the training function, and report "
            f"there."
        )
    session = worker.session
    task = None
    if validation is not False:
        task = validation_task(worker, validation, has_checkpoint=checkpoint is not None)
    if checkpoint is None:
        if task is None:
            session.report(metrics)
        else:
            session.report(metrics, validation=task)
        return
    from hpctrain.worker.upload import Upload

    upload = Upload(
        checkpoint=checkpoint,
        dir_name=checkpoint_dir_name,
        mode=checkpoint_upload_mode,
        delete_local=bool(delete_local_checkpoint_after_upload),
        upload_fn=checkpoint_upload_fn,
        validation=task,
    )
    session.report(metrics, upload)


def validation_task(
    worker: ActiveWorker, given: object, *, has_checkpoint: bool
) -> Mapping[str, Any] | None:
    """Return how a checkpoint is to be validated, in the form that is stored with it.

    Not collective. None where `given`, the argument of `report`, is False.

    Raises
    ------
    ConfigError
        If there is no checkpoint or no ValidationConfig.
    """
    if given is False:
        return None
    # Loaded only where a validation is requested.
    from hpctrain.validation_task_config import ValidationTaskConfig, merge_task

    task = merge_task(worker.validation or ValidationTaskConfig(), given)
    if worker.validation is None:
        raise ConfigError(
            f"report(validation={given!r}): the trainer has no function for it. Give it one: "
            f"validation_config=ValidationConfig(fn=...)."
        )
    if not has_checkpoint and worker.context.world.world_size == 1:
        raise ConfigError(
            f"report(validation={given!r}) has no checkpoint, and that is what is validated. Give "
            f"one, or leave validation out."
        )
    return {"fn_kwargs": dict(task.fn_kwargs), "timeout_s": task.timeout_s}


def heartbeat() -> None:
    """Report that this rank makes progress, where a step takes long and has nothing to report.

    Not collective. For validation, compilation or loading that takes longer than
    ``FailureConfig(hang_timeout_s=...)``: call it in their loop. Costs next to nothing; one a
    second is sent.

    Raises
    ------
    WorkerContextError
        Outside of a training function.
    """
    active_worker("heartbeat()").session.heartbeat()


def get_context() -> TrainContext:
    """Return where this rank stands. Not collective."""
    return active_worker("get_context()").context


def get_checkpoint() -> Checkpoint | None:
    """Return the newest complete checkpoint, or None at a fresh start. Not collective.

    After a restart it is what the run resumes from; later the last one that this rank knows to
    be committed.
    """
    return active_worker("get_checkpoint()").session.checkpoint


def get_dataset_shard(dataset_name: str = "train") -> Any:
    """Return this rank's part of a dataset that the trainer was given, preprocessed.

    Not collective.

    Parameters
    ----------
    dataset_name
        Its key in ``datasets``. A `hpctrain.data.Dataset` gives a `hpctrain.data.DataIterator`,
        the same one each time.

    Raises
    ------
    KeyError
        If the trainer was given no such dataset.
    ConfigError
        If it cannot be split.
    """
    from hpctrain.worker.dataset_shard import take_shard

    return take_shard(active_worker("get_dataset_shard()"), dataset_name)


def get_all_reported_checkpoints(timeout_s: float | None = None) -> list[ReportedCheckpoint]:
    """Return the checkpoints that the run has now, oldest first, with their metrics.

    Not collective, but it waits until the checkpoints of all reports that this rank has made are
    committed, ASYNC ones too: until every rank has made these reports. What `CheckpointConfig`
    does not keep is not there. A validation that ends meanwhile may make a difference between
    ranks.

    Parameters
    ----------
    timeout_s
        Seconds to wait; None is ``SyncConfig(sync_timeout=...)``.

    Raises
    ------
    CheckpointError
        If they are not committed in time, or one could not be.
    """
    session = active_worker("get_all_reported_checkpoints()").session
    return session.all_checkpoints(timeout_s)


def should_stop() -> bool:
    """Return whether the training function should save and return. Not collective.

    True on every rank after the same report, so ranks that ask after each report leave together. A
    stop is wanted when ``RunConfig(stop=...)`` is met, after ``hpctrain cancel``, when
    ``RunConfig(total_time=...)`` is used up, before the end of the time limit, and when the job is
    preempted; after the last two the run goes on in another job. An elastic run that can have more
    workers stops too, and goes on with them.

    A function that was notified may make one more report, with a last checkpoint. One that does
    not ask, or goes on, is unwound by its next ``report()``, which raises a `BaseException`:
    ``finally`` blocks run, and work since the newest checkpoint is done again. For more
    workers alone, a function that does not ask is not unwound.
    """
    return active_worker("should_stop()").session.should_stop()


def get_preemption_info() -> PreemptionInfo | None:
    """Return what is known of the end of this job, or None while it is not to leave it.

    Not collective. The same on every rank after the same report as `should_stop`. The job is about
    to be preempted, was warned by ``scancel --signal``, or comes to the end of its time limit; the
    run goes on in another one by itself. A training function that saves and returns has done all
    that is wanted of it.
    """
    session = active_worker("get_preemption_info()").session
    # In this order: should_stop() notifies the function, whatever the reason is.
    leave = session.leave
    if leave is None or not session.should_stop():
        return None
    deadline = leave["deadline"]
    return PreemptionInfo(
        deadline_ms=None if deadline is None else int(deadline * 1000),
        preempted_node_to_ranks={node: tuple(ranks) for node, ranks in leave["nodes"].items()},
    )


@contextmanager
def checkpoint_dir() -> Iterator[str]:
    """Give an empty directory of this rank that lies inside the next report's commit.

    Not collective. Save into it, then pass it to `report` in a Checkpoint: nothing is copied but
    the files that links in it lead to. With ``SyncConfig(scratch_dir=...)`` it lies on the node's
    own disk, and is copied, once. It is deleted if an exception leaves the block before a report,
    and by the next `checkpoint_dir` if no report has taken it.

    Examples
    --------
    ::

        with hpctrain.checkpoint_dir() as d:
            torch.save(model.state_dict(), f"{d}/model.pt")
            hpctrain.report({"loss": loss}, Checkpoint.from_directory(d))
    """
    session = active_worker("checkpoint_dir()").session
    with session.loop_time.waiting(CHECKPOINT):
        directory, reports = session.staging(), session.reports
        try:
            yield str(directory)
        except BaseException:
            if session.reports == reports:
                from hpctrain.rundir.removal import remove_tree

                # A function that continues after a full disk needs the room.
                remove_tree(directory)
            raise


def artifact_dir() -> Path:
    """Return the directory for files of this rank beside checkpoints: plots, tables, logs.

    Not collective. It is ``artifacts/`` of the run directory, or with
    ``SyncConfig(sync_artifacts=True)`` a directory on the node's own disk that is copied there.
    Ranks share ``artifacts/``: put the rank into the names of files that each of them writes.
    """
    return active_worker("artifact_dir()").session.artifacts()
