"""The work of each rank of a batch prediction."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import pickle_trust
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import VALIDATION_NAME
from hpctrain.data.batch import Batch, num_rows, slice_batch
from hpctrain.data.dataset import Dataset
from hpctrain.data.formats import from_any
from hpctrain.data.identity import files_below, files_of, identify_files, newest
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.own_files import DIRECTORY_MODE
from hpctrain.predict import lean_import
from hpctrain.predict.batches import name_outputs
from hpctrain.predict.identity import Identity
from hpctrain.predict.output import Output
from hpctrain.predict.part_files import PartFile
from hpctrain.predict.parts import Claims, Partition
from hpctrain.predict.pipeline import Reader, Writer
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.progress import Progress
from hpctrain.worker import mpi
from hpctrain.worker.context import ActiveWorker, active_worker


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A batch prediction, as a value that is pickled for the ranks."""

    dataset: Dataset
    predictor_cls: type[Predictor]
    checkpoint: Path | None
    predictor_kwargs: Mapping[str, Any]
    predict_kwargs: Mapping[str, Any]
    preprocessor: Any
    """Replaces the checkpoint's; None uses that one."""
    own_pickles: frozenset[str] = frozenset()
    """Digests of pickles in the checkpoint that the calling process has made itself."""
    feature_columns: tuple[str, ...]
    """Columns for the predictor, after the preprocessor."""
    keep_columns: tuple[str, ...]
    """Columns to copy beside the predictions, after the preprocessor."""
    batch_size: int
    rows_per_part: int | None
    output: Output | None
    """The output; None is ``artifacts/predictions.h5`` of the run."""
    identity: Identity
    """Digests of everything that the predictions depend on."""

    def input_files(self) -> list[str]:
        """Return the files that the rows are in. Not collective."""
        return files_of(self.dataset)

    def model_files(self) -> list[str]:
        """Return the files of the checkpoint, without a validation's. Not collective."""
        if self.checkpoint is None:
            return []
        # A validation may end between two predictions.
        of_validation = str(self.checkpoint / VALIDATION_NAME)
        return [path for path in files_below(self.checkpoint) if path != of_validation]

    def check_unchanged(self) -> None:
        """Check that the files of the input and of the checkpoint have not changed.

        Not collective; for rank 0.

        Raises
        ------
        ConfigError
            If they have; the message names the file that was changed last.
        """
        for what, files, known in (
            ("the input has", self.input_files(), self.identity.inputs),
            ("the files of the checkpoint have", self.model_files(), self.identity.model),
        ):
            if identify_files(files) != known:
                raise ConfigError(
                    f"{what} changed since this prediction began, last {newest(files)}, so the "
                    f"parts that are scored already do not match. Remove the parts and predict "
                    f"again, under another name if the run has one."
                )

    def output_in(self, run: Path) -> Output:
        """Return the output, for a run in a directory. Not collective."""
        return self.output or Output.at(run / "artifacts" / "predictions.h5")

    def partition(self, world_size: int) -> Partition:
        """Return the partition of the rows for this number of ranks. Not collective."""
        rows = self.dataset.source.num_rows
        if self.rows_per_part is not None:
            return Partition(num_rows=rows, rows_per_part=self.rows_per_part)
        return Partition.make(rows, batch_size=self.batch_size, world_size=world_size)

    def load(self) -> Predictor:
        """Load the model. Not collective."""
        checkpoint: Any = None if self.checkpoint is None else Checkpoint(self.checkpoint)
        cls = self.predictor_cls
        # A subclass may need more packages, and so may steps, which run at the same time.
        is_lean = "needless_packages" in vars(cls) and not self.dataset.steps
        with lean_import.without(cls.needless_packages if is_lean else ()):
            cls.import_framework()
        if self.own_pickles:
            pickle_trust.remember_digests(self.own_pickles)
        predictor = cls.from_checkpoint(checkpoint, **self.predictor_kwargs)
        if self.preprocessor is not None:
            predictor.set_preprocessor(self.preprocessor)
        return predictor


class Scorer:
    """A loaded predictor that computes the rows of an output.

    Parameters
    ----------
    predictor
        The predictor. Its preprocessor is called here, because columns are kept after it.
    scoring
        The columns for the predictor, and those to keep.
    """

    def __init__(self, predictor: Predictor, scoring: Scoring) -> None:
        self._preprocessor = predictor.get_preprocessor()
        predictor.set_preprocessor(None)
        self._predictor = predictor
        self._scoring = scoring
        self._takes_frames = type(predictor).preferred_batch_format() == "pandas"
        self.gave_rows = True
        """Whether there was a row for each row of the last batch."""
        self._has_warned = False

    def __call__(self, batch: Batch) -> Batch:
        """Return the output's rows for some rows of the input. Not collective.

        Raises
        ------
        ConfigError
            If an output has the name of a kept column, or another number of rows.
        """
        if self._preprocessor is not None:
            batch = from_any(self._preprocessor.transform_batch(batch))
        scoring = self._scoring
        kept = {name: batch[name] for name in scoring.keep_columns}
        features: Any = {name: _apart_from(kept, batch[name]) for name in scoring.feature_columns}
        if self._takes_frames:
            features = to_pandas(features)
        scored = name_outputs(self._predictor.predict(features, **scoring.predict_kwargs))
        if clash := [name for name in kept if name in scored]:
            raise ConfigError(
                f"keep_columns={clash} are names of the predictor's outputs too. Rename these "
                f"columns of the input, or leave them out of keep_columns."
            )
        self._compare_rows(scored, num_rows(batch))
        return {**kept, **scored}

    def _compare_rows(self, scored: Batch, rows: int) -> None:
        given = num_rows(scored)
        self.gave_rows = given == rows
        if self.gave_rows:
            return
        found = f"{type(self._predictor).__name__} returned {given} rows for {rows}"
        if kept := self._scoring.keep_columns:
            raise ConfigError(
                f"{found}, so keep_columns={list(kept)} cannot be copied beside them. Let it "
                f"return one row for each, or leave out keep_columns."
            )
        if not self._has_warned:
            log(f"warning: {found}: predictions do not match rows of the input.")
        self._has_warned = True


def _apart_from(kept: Batch, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a feature in memory of its own if it shares that of a kept column.

    A predictor may work in place.
    """
    return values.copy() if any(np.may_share_memory(values, k) for k in kept.values()) else values


def score(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Score the rows of this rank, and finish the output after all ranks. Collective.

    It is the training function of a batch prediction: its ``config`` has the `Scoring`.
    """
    scoring: Scoring = config["scoring"]
    worker = active_worker("score()")
    world = worker.context.world
    output = scoring.output_in(worker.context.storage)
    with output.hold() if world.world_rank == 0 else contextlib.nullcontext():
        return _score_held(scoring, output, worker)


def _score_held(scoring: Scoring, output: Output, worker: ActiveWorker) -> dict[str, Any] | None:
    world, comm = worker.context.world, worker.comm
    begun = time.time()
    claims = output.parts / f".claims-{worker.context.name}-{world.attempt}"
    plan: tuple[Partition, set[int]] | None = None
    if world.world_rank == 0:
        scoring.check_unchanged()
        plan = output.begin(scoring.identity, scoring.partition(world.world_size))
        if plan is not None:
            claims.mkdir(DIRECTORY_MODE)
    plan = comm.bcast(plan)
    if plan is None:
        # An earlier attempt finished the output, and failed before it reported that.
        return None
    partition, done = plan
    todo = [part for part in range(partition.num_parts) if part not in done]
    progress = Progress(worker=worker, output=output, partition=partition, done=done)
    mine = Claims(claims, todo, rank=world.world_rank, world_size=world.world_size)
    _score_parts(scoring, output, partition, mine, progress)
    _wait_for_all(worker)
    reports = comm.allgather(worker.session.reports)
    while worker.session.reports < max(reports):
        # Ranks have made different numbers of reports, but must end after the same one.
        worker.session.report({})
    worker.session.should_stop()
    everyone = comm.allgather(progress.own())
    written = done.union(*(own.parts for own in everyone))
    if len(written) < partition.num_parts:
        return None
    if world.world_rank == 0:
        # If files changed meanwhile, ranks may have read old and new rows.
        scoring.check_unchanged()
        output.finish(partition.num_parts)
    comm.barrier()
    firsts = [own.first_row_at for own in everyone if own.first_row_at is not None]
    summary = {
        **progress.describe(partition.num_rows),
        "rows_before": progress.rows_before,
        "seconds": round(time.time() - begun, 3),
        "rows_of_ranks": [own.rows for own in everyone],
        "output": os.fspath(output.path),
    }
    worker.session.report(summary)
    return {
        **summary,
        "model_s": max(own.model_s for own in everyone),
        "first_row_at": min(firsts, default=None),
    }


def _score_parts(
    scoring: Scoring, output: Output, partition: Partition, mine: Claims, progress: Progress
) -> None:
    dataset = scoring.dataset
    claimed = ((part, partition.rows(part)) for part in mine)

    # Set by the first batch of a part, before the writer thread opens its file.
    keeps_rows: dict[int, bool] = {}

    def open_part(part: int) -> PartFile:
        return output.open_part(part, len(partition.rows(part)) if keeps_rows[part] else None)

    columns = output.columns()
    # Reading begins before the model is loaded, which takes longer.
    with (
        Reader(dataset, claimed, batch_size=scoring.batch_size) as reader,
        Writer(open_part, output.mark_empty, progress.parts.append) as writer,
    ):
        started = time.monotonic()
        scorer = Scorer(scoring.load(), scoring)
        progress.model_s = time.monotonic() - started
        for slab in reader:
            for batch in _split(slab.batch, scoring.batch_size):
                scored = columns.conform(scorer(batch))
                keeps_rows.setdefault(slab.part, dataset.keeps_rows and scorer.gave_rows)
                writer.put(slab.part, scored, is_last=False)
                if progress.add(num_rows(batch)):
                    # A resumed run scores this part again.
                    writer.abandon()
                    return
            if slab.is_last:
                writer.put(slab.part, None, is_last=True)


def _wait_for_all(worker: ActiveWorker) -> None:
    """Wait for ranks that still score, without a timeout: a hanging rank is detected elsewhere."""
    if worker.context.world.world_size > 1:
        comm: Any = worker.comm
        mpi.wait_barrier(comm, timeout_s=math.inf, meanwhile=worker.session.heartbeat)


def _split(batch: Batch | None, batch_size: int) -> Iterator[Batch]:
    for start in range(0, 0 if batch is None else num_rows(batch), batch_size):
        assert batch is not None
        yield slice_batch(batch, start, start + batch_size)
