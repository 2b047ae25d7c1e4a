"""Output of a prediction: one path, which appears when all parts are complete."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from hpctrain import timeouts
from hpctrain.data.dataset import Dataset
from hpctrain.errors import ConfigError
from hpctrain.own_files import DIRECTORY_MODE, name_beside
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.predict.columns import AgreedColumns, OutputColumn, read_columns
from hpctrain.predict.identity import Identity
from hpctrain.predict.joined_parts import join_parts
from hpctrain.predict.parquet_types import unify_parts
from hpctrain.predict.part_files import (
    NOTHING,
    CsvPart,
    Hdf5Part,
    NumpyPart,
    ParquetPart,
    PartFile,
    sync_file,
)
from hpctrain.predict.parts import Partition, empty_part_name, part_name, parts_in
from hpctrain.rundir.files import fsync_directory, fsync_file, write_atomic
from hpctrain.rundir.trust import check_owner

_PLAN_NAME = "_plan.json"
_COLUMNS_NAME = "_columns.json"
_LOCK_NAME = "_lock"
_LOCK_INTERVAL_S = 0.2

_FORMATS: Mapping[str, type[PartFile]] = {
    ".h5": Hdf5Part,
    ".hdf5": Hdf5Part,
    ".parquet": ParquetPart,
    ".csv": CsvPart,
    ".npy": NumpyPart,
}


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a batch prediction.

    ``OUTPUT.parts/`` beside it has one file for each part. At the end an HDF5 output is a small
    file of virtual datasets over these; a Parquet output is that directory, renamed; CSV and NumPy
    outputs are the parts, joined into one file. ``_plan.json`` identifies the prediction.
    """

    path: Path

    @staticmethod
    def at(path: str | PathLike[str]) -> Output:
        """Return the output at a path.

        Not collective.

        Raises
        ------
        ConfigError
            If its ending is unknown, or it is a URL.
        """
        if "://" in fspath(path):
            raise ConfigError(
                f"output={fspath(path)!r} is a URL, but ranks write to a filesystem that all nodes "
                f"share. Give a path there."
            )
        output = Output(path=Path(path).expanduser().absolute())
        if output.path.suffix not in _FORMATS:
            raise ConfigError(
                f"the format of output={fspath(path)!r} is unknown. Give a path that ends with one "
                f"of {', '.join(_FORMATS)}."
            )
        return output

    @property
    def part_type(self) -> type[PartFile]:
        """Class that writes a part."""
        return _FORMATS[self.path.suffix]

    @property
    def parts(self) -> Path:
        """Directory of the parts."""
        return self.path.with_name(self.path.name + ".parts")

    def is_finished(self, identity: Identity) -> bool:
        """Return whether the output is complete.

        Not collective.

        Parameters
        ----------
        identity
            Identity of the prediction.

        Raises
        ------
        ConfigError
            If the path, or its parts, belong to something else.
        """
        plan = self._read_plan()
        exists = os.path.lexists(self.path)
        if plan is not None and identity.is_that_of(plan):
            return exists
        if exists:
            why = "" if plan is None else f": {identity.differences(plan)}"
            raise ConfigError(
                f"output={str(self.path)!r} exists, but is not the output of this prediction{why}. "
                f"It is never overwritten: remove it, and {self.parts.name} beside it, or choose "
                f"another path."
            )
        self.refuse_parts_of_another(identity)
        return False

    def refuse_parts_of_another(self, identity: Identity) -> None:
        """Check that existing parts are not those of another prediction. Not collective.

        Parameters
        ----------
        identity
            As in `is_finished`.

        Raises
        ------
        ConfigError
            If they are.
        """
        plan = self._read_plan()
        if plan is not None and not identity.is_that_of(plan):
            raise ConfigError(
                f"{self.parts} holds parts of another prediction: {identity.differences(plan)}. "
                f"Remove it, or choose another output, and another RunConfig(name=...) if you gave "
                f"one."
            )

    def check(self, *, keep_columns: Sequence[str]) -> None:
        """Check that the output can be written. Not collective.

        Raises
        ------
        ConfigError
            If the format does not support these columns beside the predictions, or the directory is
            not writable.
        """
        if keep_columns and self.part_type is NumpyPart:
            raise ConfigError(
                f"output={str(self.path)!r} holds one array, so it has no place for keep_columns="
                f"{list(keep_columns)}. Choose .h5, .parquet or .csv."
            )
        self.part_type.check_names(keep_columns)
        folder = self.path.parent
        while not folder.exists():
            folder = folder.parent
        try:
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(
                f"output={str(self.path)!r}: {folder} is not writable ({error.strerror}). Choose "
                f"another path."
            ) from error

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the output against other runs, if the filesystem has locks. Not collective; rank 0.

        Waits up to two minutes: so long the server of a filesystem may hold the lock of a dead
        node.

        Raises
        ------
        ConfigError
            If another run writes this output, or another user can write its parts.
        """
        deadline = Deadline(timeouts.PREDICTION_LOCK_S, longest_gap_s=ANY_GAP_S)
        while (lock := self._lock()) is None:
            if deadline.is_over:
                raise ConfigError(
                    f"another run has been writing {self.path} for the last "
                    f"{timeouts.describe(timeouts.PREDICTION_LOCK_S)}. Wait for it ('hpctrain "
                    f"list' shows runs), or choose another output."
                )
            time.sleep(_LOCK_INTERVAL_S)
        try:
            yield
        finally:
            # A Parquet output is the directory of the parts.
            for directory in (self.parts, self.path):
                with suppress(OSError):
                    if _is_at(directory / _LOCK_NAME, lock):
                        (directory / _LOCK_NAME).unlink()
            os.close(lock)
            with suppress(OSError):
                # Succeeds only if it is empty.
                self.parts.rmdir()

    def _lock(self) -> int | None:
        """Return a descriptor of the lock; None if another run holds it."""
        self.parts.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        try:
            check_owner(os.stat(self.parts), self.parts, what="directory", instead="another output")
            # A file, open for writing: NFS and Lustre lock a directory on one node alone, and NFS
            # has no exclusive lock on a file that is open for reading.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.parts / _LOCK_NAME, flags, 0o666)
        except FileNotFoundError:
            # A run that has just ended removed the directory.
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return None
        except OSError:
            # No locks on this filesystem.
            pass
        if _is_at(self.parts / _LOCK_NAME, descriptor):
            return descriptor
        # A run that has just ended removed the file.
        os.close(descriptor)
        return None

    def begin(self, identity: Identity, partition: Partition) -> tuple[Partition, set[int]] | None:
        """Return the partition of this output and the parts that are done; None if it is finished.

        Not collective; for rank 0. The partition is the one that the prediction began with.
        Temporary files of dead ranks are removed.

        Raises
        ------
        ConfigError
            If the path, or its parts, belong to something else.
        """
        if self.is_finished(identity):
            return None
        plan = self._read_plan()
        if plan is None:
            content = {
                **identity.to_plan(),
                "num_rows": partition.num_rows,
                "rows_per_part": partition.rows_per_part,
            }
            write_atomic(self.parts / _PLAN_NAME, json.dumps(content).encode(), durable=True)
        else:
            partition = Partition(num_rows=plan["num_rows"], rows_per_part=plan["rows_per_part"])
        self._remove_leftovers()
        if not any(self.parts.glob(f"part-*{self.part_type.suffix}")):
            # Without parts it need not be on disk, and may be damaged.
            (self.parts / _COLUMNS_NAME).unlink(missing_ok=True)
        return partition, self.done()

    def done(self) -> set[int]:
        """Return the parts that are done. Not collective."""
        return parts_in(self.parts, self.part_type.suffix)

    def columns(self) -> AgreedColumns:
        """Return the columns that all ranks agree on. Not collective."""
        return AgreedColumns(self.parts / _COLUMNS_NAME, self.part_type)

    def open_part(self, part: int, rows: int | None) -> PartFile:
        """Return the file of a part, for writing. Not collective."""
        columns = self.parts / _COLUMNS_NAME
        if columns.exists():
            # A part must not be durable before the columns that later parts need.
            fsync_file(columns)
        kinds = {name: column.kind for name, column in self._agreed().items()}
        return self.part_type(self._part(part), rows=rows, kinds=kinds)

    def _agreed(self) -> dict[str, OutputColumn]:
        """Return the columns that ranks have agreed on, none before that."""
        columns = self.parts / _COLUMNS_NAME
        return read_columns(columns) if columns.exists() else {}

    def mark_empty(self, part: int) -> None:
        """Record that a part has no rows. Not collective."""
        (self.parts / empty_part_name(part)).touch()

    def finish(self, num_parts: int) -> None:
        """Make the output from its parts.

        Not collective; for rank 0, when all parts are done.

        Raises
        ------
        ConfigError
            If no part has rows.
        """
        numbers = [n for n in range(num_parts) if not (self.parts / empty_part_name(n)).exists()]
        if not numbers:
            raise ConfigError(
                "the steps of the dataset (filter, map_batches) leave no rows, so there is nothing "
                "to predict. Check its filter()."
            )
        self._remove_leftovers()
        parts = [self._part(number) for number in numbers]
        if self.part_type is ParquetPart:
            if NOTHING in (column.kind for column in self._agreed().values()):
                unify_parts(parts)
            fsync_directory(self.parts)
            os.rename(self.parts, self.path)
        else:
            fsync_directory(self.parts)
            beside = name_beside(self.path)
            join_parts(self.part_type, parts, beside)
            sync_file(beside)
            os.replace(beside, self.path)
        fsync_directory(self.path.parent)
        if self.part_type in (CsvPart, NumpyPart):
            for part in parts:
                part.unlink()

    def read(self) -> Dataset:
        """Return the output as a dataset.

        Not collective.

        Raises
        ------
        ConfigError
            If it does not exist.
        """
        from hpctrain.predict.input import open_dataset

        options: dict[str, Any] = {}
        if self.part_type is CsvPart and (agreed := self._agreed()):
            options["dtypes"] = _types_of_csv(agreed)
        return open_dataset([self.path], **options)

    def _read_plan(self) -> Any:
        # A Parquet output is the directory of the parts.
        for directory in (self.parts, self.path):
            try:
                return json.loads((directory / _PLAN_NAME).read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                continue
        return None

    def _remove_leftovers(self) -> None:
        for leftover in self.parts.glob(".*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def _part(self, part: int) -> Path:
        return self.parts / part_name(part, self.part_type.suffix)


def _types_of_csv(columns: Mapping[str, OutputColumn]) -> dict[str, Any]:
    """Return the types for reading a CSV output, so that the text "007" stays text."""
    types: dict[str, Any] = {}
    for name, column in columns.items():
        kind, shape = column.kind, column.shape
        is_text = kind in ("text", NOTHING)
        dtype = "O" if is_text else kind
        if is_text or kind[0] in "<>|=":
            parts = [f"{name}_{i}" for i in range(math.prod(shape))] if shape else [name]
            types |= dict.fromkeys(parts, np.dtype(dtype))
    return types


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether a path is that of an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False
