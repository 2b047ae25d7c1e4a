"""A reader thread before, and a writer thread after, the thread that scores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hpctrain import timeouts
from hpctrain.data.batch import Batch
from hpctrain.data.dataset import Dataset
from hpctrain.errors import WorkerError
from hpctrain.predict.part_files import PartFile

_SLAB_BYTES = 8 * 2**20
_SLABS_AHEAD = 2
_BATCHES_BEHIND = 32
# Bytes that may wait for a busy disk: a part gets its name only once it is on disk.
_BYTES_BEHIND = 64 * 2**20
_LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Slab:
    """Some rows of a part, in whole batches."""

    part: int
    batch: Batch | None
    """None if the steps of the dataset have dropped all rows of the part."""
    is_last: bool
    """Whether it is the last slab of the part."""


class _Thread:
    """A thread whose exception is raised in the thread that waits for it."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def _work(self) -> None:
        raise NotImplementedError

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive():
            raise AssertionError(f"{self._thread.name} has ended without an error")


class Reader(_Thread):
    """Reads the rows that this rank scores, some MiB ahead.

    Parameters
    ----------
    dataset
        The dataset to read.
    parts
        Parts, and their rows; the next part is requested when the one before has been read.
    batch_size
        Slabs are whole batches, except for the last of a part.
    """

    def __init__(
        self, dataset: Dataset, parts: Iterable[tuple[int, range]], *, batch_size: int
    ) -> None:
        super().__init__("hpctrain-reader")
        self._dataset = dataset
        self._parts = parts
        row_bytes = max(1, dataset.schema().row_bytes)
        self._slab_rows = batch_size * max(1, _SLAB_BYTES // (batch_size * row_bytes))
        self._slabs: queue.Queue[Slab | None] = queue.Queue(_SLABS_AHEAD)

    def __enter__(self) -> Reader:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop reading."""
        self._ended.set()

    def __iter__(self) -> Iterator[Slab]:
        """Iterate over the slabs."""
        while True:
            try:
                slab = self._slabs.get(timeout=_LOOK_INTERVAL_S)
            except queue.Empty:
                # The reader may just have put its last slab.
                if self._slabs.empty():
                    self._raise_if_failed()
                continue
            if slab is None:
                return
            yield slab

    def _work(self) -> None:
        for part, rows in self._parts:
            held: Batch | None = None
            for batch in self._dataset.iter_batches(batch_size=self._slab_rows, rows=rows):
                if held is not None:
                    self._put(Slab(part=part, batch=held, is_last=False))
                held = batch
            self._put(Slab(part=part, batch=held, is_last=True))
            if self._ended.is_set():
                return
        self._put(None)

    def _put(self, slab: Slab | None) -> None:
        while not self._ended.is_set():
            try:
                self._slabs.put(slab, timeout=_LOOK_INTERVAL_S)
                return
            except queue.Full:
                continue


class Writer(_Thread):
    """Writes the rows that this rank has scored, one part after another.

    Parameters
    ----------
    open_part
        Opens the file of a part.
    mark_empty
        Records that a part has no rows.
    on_written
        Called with a part once it is on disk.
    """

    def __init__(
        self,
        open_part: Callable[[int], PartFile],
        mark_empty: Callable[[int], None],
        on_written: Callable[[int], None],
    ) -> None:
        super().__init__("hpctrain-writer")
        self._open_part = open_part
        self._mark_empty = mark_empty
        self._is_new = True
        self._on_written = on_written
        self._batches: queue.Queue[tuple[int, Batch | None, bool] | None] = queue.Queue(
            _BATCHES_BEHIND
        )

    def __enter__(self) -> Writer:
        """Begin to write."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until everything is written, or stop at once after an exception."""
        if kind is None and not self._ended.is_set():
            self._put(None)
            self._thread.join(timeouts.LAST_PREDICTIONS_S)
            if self._thread.is_alive():
                raise WorkerError(
                    f"the last predictions could not be written within "
                    f"{timeouts.describe(timeouts.LAST_PREDICTIONS_S)}. The filesystem of the "
                    f"output may hang: check it on this node."
                )
            if self._error is not None:
                raise self._error
        else:
            self.abandon()
            self._thread.join(timeouts.LAST_PREDICTIONS_S)

    def put(self, part: int, batch: Batch | None, *, is_last: bool) -> None:
        """Queue rows of a part, in order. Not collective. Waits for a slow filesystem."""
        if self._is_new and batch is not None:
            self._is_new = False
            size = sum(values.nbytes for values in batch.values())
            self._batches.maxsize = max(_BATCHES_BEHIND, _BYTES_BEHIND // max(size, 1))
        self._put((part, batch, is_last))

    def abandon(self) -> None:
        """Stop writing, and remove an incomplete part. Not collective."""
        self._ended.set()
        # It looks whether it has ended after each item, and this is one where none is queued.
        with suppress(queue.Full):
            self._batches.put_nowait(None)

    def _put(self, item: Any) -> None:
        while True:
            try:
                self._batches.put(item, timeout=_LOOK_INTERVAL_S)
            except queue.Full:
                self._raise_if_failed()
                continue
            if self._error is not None:
                raise self._error
            return

    def _work(self) -> None:
        file: PartFile | None = None
        try:
            while not self._ended.is_set():
                try:
                    item = self._batches.get(timeout=_LOOK_INTERVAL_S)
                except queue.Empty:
                    continue
                if item is None:
                    return
                part, batch, is_last = item
                if batch is not None:
                    file = file or self._open_part(part)
                    file.append(batch)
                if is_last:
                    if file is None:
                        self._mark_empty(part)
                    else:
                        file.complete()
                        file = None
                    self._on_written(part)
        finally:
            if file is not None:
                file.abandon()
