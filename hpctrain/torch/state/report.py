"""`report_state`: a report with a model's whole state, written straight into its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import xxhash

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.bulk.state_file_writer import write_state_file
from hpctrain.checkpoint import CheckpointUploadMode
from hpctrain.errors import ConfigError
from hpctrain.loop_time import CHECKPOINT
from hpctrain.rundir.files import write_unseen
from hpctrain.rundir.staging import StagedFile
from hpctrain.torch.state.layout.save_plan import SavePlan, plan_save
from hpctrain.torch.state.ranks import failing_together
from hpctrain.torch.state.save import shared_ring
from hpctrain.torch.state.state_dict.flatten import flatten_state
from hpctrain.torch.state.state_dict.optimizer import optimizers_of
from hpctrain.worker.context import active_worker, validation_task
from hpctrain.worker.upload import Upload

if TYPE_CHECKING:
    import torch

    from hpctrain.torch.loop import LoopState
    from hpctrain.torch.state.engine.snapshot import Snapshot, Snapshots
    from hpctrain.validation_config import ValidationTaskConfig
    from hpctrain.worker.report import Session


def report_state(
    metrics: Mapping[str, Any],
    *,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    loop: LoopState | None = None,
    checkpoint_dir_name: str | None = None,
    mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    validation: bool | ValidationTaskConfig = False,
    **others: Any,
) -> None:
    """Report metrics, and a checkpoint with the state of model, optimizer and all else.

    Collective: every rank calls it instead of `hpctrain.report`, with the same names. Each writes
    its share into the run directory, with a digest of every 8 MiB, and nothing is read again.
    `hpctrain.torch.load_state` reads it, on any number of ranks.

    Parameters
    ----------
    metrics
        Names and numbers, as in `hpctrain.report`.
    model, optimizer
        As in `hpctrain.torch.save_state`.
    loop
        What `hpctrain.torch.loop_state` gave; `LoopState.restore` reads it. Leave the optimizer out
        there.
    checkpoint_dir_name
        Name of the checkpoint in ``checkpoints/``; by default the number of the report.
    mode
        SYNC returns when the checkpoint is committed. With ASYNC training goes on meanwhile: all is
        saved as it is at the call. The next step of the optimizer waits until the state is copied,
        not until it is written. A change through ``tensor.data`` before that step, as libraries
        make that swap averaged weights (EMA) in for a validation, is not noticed, and may be saved:
        use SYNC there. NO_UPLOAD is SYNC. Steps that a CUDA graph replays run no Python and cannot
        wait: an optimizer with ``capturable=True`` has SYNC in place of it, and if you capture the
        steps of another one, ask for SYNC.
    validation
        Whether, and how, the checkpoint is validated beside the training, as in `hpctrain.report`.
    **others
        What else there is, by name, as in `hpctrain.torch.save_state`.

    Raises
    ------
    ConfigError
        If something of it cannot be saved, the metrics are not a dict of plain values, or a
        validation is wanted and the trainer has no ValidationConfig. Of what cannot be saved other
        ranks raise a CheckpointError, and no rank has made the report.
    CheckpointError
        If the checkpoint could not be written, on all ranks: the checkpoints before it are whole,
        the report has been made, and who catches this on all ranks may go on. With ASYNC the next
        report raises it.
    WorkerContextError
        Outside of a training function.

    Examples
    --------
    ::

        loop = hpctrain.torch.loop_state(loader=loader)
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint is not None:
            hpctrain.torch.load_state(checkpoint, model=model, optimizer=optimizer)
        loop.restore(checkpoint)
        for epoch in loop.epochs(10):
            for inputs, targets in loop.batches():
                ...
                if loop.step % 100 == 0:
                    hpctrain.torch.report_state(
                        {"loss": loss.item()}, model=model, optimizer=optimizer, loop=loop
                    )
    """
    worker = active_worker("report_state()")
    if not isinstance(mode, CheckpointUploadMode):
        raise ConfigError(
            f"report_state(mode={mode!r}): CheckpointUploadMode.SYNC or CheckpointUploadMode.ASYNC."
        )
    session = worker.session
    task = validation_task(worker, validation, has_checkpoint=True)
    with session.loop_time.waiting(CHECKPOINT), session.shared_staging() as directory:
        # Ranks that have made fewer reports than others would save a state of several moments.
        stage = f"report_state() of report {session.reports + 1}"
        with failing_together(worker.comm, stage):
            optimizers = optimizers_of(optimizer)
            state = flatten_state(
                model=model, optimizer=optimizers if optimizer is not None else None, others=others
            )
        plan = plan_save(state, communicator=worker.comm, stage=stage)
        changed_by = [model, *optimizers, *others.values()]
        if _steps_may_be_replayed(changed_by):
            mode = CheckpointUploadMode.SYNC
        session.report(
            metrics,
            Upload(
                checkpoint=None,
                dir_name=checkpoint_dir_name,
                mode=mode,
                validation=task,
                writer=RankWriter(
                    plan,
                    directory=directory,
                    loop=loop,
                    session=session,
                    changed_by=changed_by,
                ),
            ),
        )


def _steps_may_be_replayed(changed_by: Sequence[Any]) -> bool:
    import torch

    return any(
        group.get("capturable", False)
        for part in changed_by
        if isinstance(part, torch.optim.Optimizer)
        for group in part.param_groups
    )


# Their memory is used again from report to report, and goes with the run.
_snapshots: WeakKeyDictionary[Session, Snapshots] = WeakKeyDictionary()


class RankWriter:
    """Writes a rank's share of a state: in the report itself, or in the background.

    Parameters
    ----------
    plan
        What to write.
    directory
        Where to.
    loop
        Whose small files go with it, if any.
    session
        Which reports it.
    changed_by
        What the state is of: its optimizers and models wait, before they change it.
    """

    def __init__(
        self,
        plan: SavePlan,
        *,
        directory: Path,
        loop: LoopState | None,
        session: Session,
        changed_by: Sequence[Any],
    ) -> None:
        from hpctrain.torch.state.streams import StreamEvents

        self._plan, self._loop = plan, loop
        self.directory = directory
        """Where to."""
        self._files: Mapping[str, bytes] | None = None
        self._session, self._changed_by = session, changed_by
        self._snapshot: Snapshot | None = None
        # It may be written in another thread, behind what this one has given its devices to do.
        self._stream_events = StreamEvents({tensor.device for tensor in plan.source.tensors})

    def capture(self) -> None:
        """Take a snapshot of the share. Not collective."""
        self._files = self._files_of_loop()
        self._snapshot = _snapshots_of(self._session).take(
            self._plan,
            changed_by=self._changed_by,
            name=f"The checkpoint of report {self._session.reports}",
        )
        self._changed_by = ()

    def write(self) -> list[StagedFile]:
        """Write the files, durably. Not collective."""
        if self._files is None:
            self._files = self._files_of_loop()
        path = self.directory / self._plan.name
        # Each small file costs the disk a flush: while the large one is written, they cost no time.
        with ThreadPoolExecutor(1, thread_name_prefix="hpctrain-report") as beside:
            small = beside.submit(self._write_files, self._files)
            if self._snapshot is not None:
                written = self._snapshot.finish(path)
            else:
                copies = self._plan.source
                with self._stream_events.after():
                    ring = shared_ring(copies.tensors)
                    written = write_state_file(path, copies.layout, copies.fill, ring=ring)
            return [StagedFile(path.name, written.size, written.digest, "header"), *small.result()]

    def discard(self) -> None:
        """Free the memory of a snapshot. Not collective."""
        if self._snapshot is not None:
            self._snapshot.discard()

    def _files_of_loop(self) -> Mapping[str, bytes]:
        return {} if self._loop is None else self._loop.to_files()

    def _write_files(self, files_of_loop: Mapping[str, bytes]) -> list[StagedFile]:
        staged = []
        files = dict(files_of_loop)
        if self._plan.index is not None:
            files[INDEX_NAME] = self._plan.index.encode()
        for name, content in files.items():
            write_unseen(self.directory / name, content)
            digest = xxhash.xxh3_128_hexdigest(content)
            staged.append(StagedFile(name, len(content), digest))
        return staged


def _snapshots_of(session: Session) -> Snapshots:
    from hpctrain.torch.state.engine.snapshot import Snapshots

    if session not in _snapshots:
        _snapshots[session] = Snapshots(
            timeout_s=session.commit_timeout_s, processes=session.world.local_world_size
        )
    return _snapshots[session]
