"""Progress of a batch prediction: of one rank, and of all in its reports."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode
from hpctrain.predict.output import Output
from hpctrain.predict.parts import Partition
from hpctrain.worker.context import ActiveWorker, checkpoint_dir

_REPORT_INTERVAL_S = 2.0
_CHECKPOINT_INTERVAL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Own:
    """The work of one rank, after it has finished."""

    parts: tuple[int, ...]
    rows: int
    first_row_at: float | None
    """Seconds since the epoch."""
    model_s: float


@dataclass
class Progress:
    """The work of this rank, and of all ranks as far as known, for reports."""

    worker: ActiveWorker
    output: Output
    partition: Partition
    done: set[int]
    """Parts that earlier attempts have scored."""
    parts: list[int] = field(default_factory=list)
    """Parts that this rank has written; the writer thread appends to it."""
    began_at: float = field(default_factory=time.monotonic)
    rows: int = 0
    """Rows that this rank has scored."""
    first_row_at: float | None = None
    """Seconds since the epoch."""
    model_s: float = 0.0
    """Seconds that loading the model took."""
    _reported_at: float = field(default_factory=time.monotonic)
    _saved_at: float = field(default_factory=time.monotonic)
    _saved: Path | None = None

    @property
    def rows_before(self) -> int:
        """Rows that earlier attempts have scored."""
        return self._rows_of(self.done)

    def own(self) -> Own:
        """Return the values that rank 0 collects. Not collective."""
        return Own(
            parts=tuple(self.parts),
            rows=self.rows,
            first_row_at=self.first_row_at,
            model_s=self.model_s,
        )

    def add(self, rows: int) -> bool:
        """Count scored rows; return whether all ranks must stop."""
        session = self.worker.session
        session.heartbeat()
        if self.first_row_at is None:
            self.first_row_at = time.time()
        self.rows += rows
        if time.monotonic() - self._reported_at < _REPORT_INTERVAL_S:
            return False
        self.report()
        return session.should_stop()

    def report(self) -> None:
        """Report; rank 0 reports the progress of all ranks."""
        self._reported_at = time.monotonic()
        if self.worker.context.world.world_rank != 0:
            self.worker.session.report({"rows": self.rows})
            return
        metrics = self.describe(self._count_rows())
        if time.monotonic() - self._saved_at >= _CHECKPOINT_INTERVAL_S and self._is_committed():
            self._report_with_checkpoint(metrics)
        else:
            self.worker.session.report(metrics)

    def describe(self, rows: int) -> dict[str, Any]:
        """Return the metrics for this number of scored rows."""
        total = self.partition.num_rows
        elapsed = time.monotonic() - self.began_at
        return {
            "rows": rows,
            "of": total,
            "percent": round(100 * rows / total, 1),
            "rows_per_s": round((rows - self.rows_before) / max(elapsed, 1e-9)),
        }

    def _count_rows(self) -> int:
        return max(self._rows_of(self.output.done()), self.rows_before + self.rows)

    def _rows_of(self, parts: Iterable[int]) -> int:
        return sum(len(self.partition.rows(part)) for part in parts)

    def _is_committed(self) -> bool:
        newest = self.worker.session.checkpoint
        return self._saved is None or (newest is not None and newest.path == self._saved)

    def _report_with_checkpoint(self, metrics: dict[str, Any]) -> None:
        # Checkpoints show that the run makes progress. They are uploaded in the background, and the
        # next one only after this one is committed, because ranks report at different times.
        from hpctrain.worker.upload import Upload

        self._saved_at = time.monotonic()
        with checkpoint_dir() as directory:
            checkpoint = Checkpoint(directory)
            checkpoint.set_metadata(metrics)
            number = self.worker.session.reports + 1
            upload = Upload(
                checkpoint=checkpoint,
                dir_name=None,
                mode=CheckpointUploadMode.ASYNC,
                delete_local=False,
                upload_fn=None,
            )
            self.worker.session.report(metrics, upload)
        run = self.worker.context.storage
        self._saved = run / "checkpoints" / f"{number:06d}"
