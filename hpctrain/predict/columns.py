"""The columns of an output: all parts of all ranks have those of the first batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.formats import from_any
from hpctrain.errors import ConfigError
from hpctrain.own_files import name_beside
from hpctrain.predict.part_files import NOTHING, PartFile

_PLAIN = (str, bool, int, float, bytes)


@dataclass(frozen=True)
class OutputColumn:
    """Type and shape of a row of a column."""

    kind: str
    """NumPy's type; for objects their type: ``text``, ``bool``, ``int``, ``bytes``, ..."""
    shape: tuple[int, ...]

    @cached_property
    def plain(self) -> tuple[str, tuple[int, ...]] | None:
        """Type and shape of a row; None for objects, whose values must be checked."""
        return (self.kind, self.shape) if self.kind[0] in "<>|=" else None

    def __str__(self) -> str:
        """Return both, in short form."""
        name = np.dtype(self.kind).name if self.kind[0] in "<>|=" else self.kind
        return f"{name}{list(self.shape) if self.shape else ''}"

    @staticmethod
    def of(name: str, values: np.ndarray[Any, Any]) -> OutputColumn:
        """Return type and shape of a column of a batch.

        Not collective.

        Raises
        ------
        ConfigError
            If its objects are of several types, which no file format supports.
        """
        if values.dtype.kind != "O":
            return OutputColumn(values.dtype.str, values.shape[1:])
        objects = values.reshape(-1).tolist()
        kinds = set(map(type, objects)) - {type(None)}
        if float in kinds and all(v != v for v in objects if type(v) is float):
            # pandas may use NaN for a missing object.
            kinds.remove(float)
        names = {"text" if kind is str else kind.__name__ for kind in kinds}
        if len(names) == 1 and kinds.isdisjoint(_PLAIN):
            # Lists of integers and of floats are different types. Arrow raises one of these errors.
            with suppress(TypeError, ValueError, NotImplementedError):
                names = {str(to_arrow({name: values}).schema.field(0).type)}
        if len(names) > 1:
            raise ConfigError(
                f"column {name!r} holds values of several types ({', '.join(sorted(names))}), "
                f"which no file format supports in one column. Give it one type, or leave it out "
                f"of keep_columns."
            )
        return OutputColumn(names.pop() if names else NOTHING, values.shape[1:])


class AgreedColumns:
    """The columns that ranks have agreed on, in a file beside the parts.

    The first rank with a batch writes it, before any part is written; the other ranks, and later
    attempts, read it.

    Parameters
    ----------
    path
        Path of that file.
    part_type
        Class of the parts.
    """

    def __init__(self, path: Path, part_type: type[PartFile]) -> None:
        self._path = path
        self._part_type = part_type
        self._agreed: dict[str, OutputColumn] | None = None

    def conform(self, batch: Mapping[str, Any]) -> Batch:
        """Return a batch with the columns of the output, in their order.

        Not collective. Nothing is cast.

        Raises
        ------
        ConfigError
            If columns or types differ, or the format does not support them.
        """
        if (usual := self._usual(batch)) is not None:
            return usual
        columns = from_any(batch)
        found = {name: OutputColumn.of(name, values) for name, values in columns.items()}
        if self._agreed is None:
            self._part_type.check_columns(columns)
            self._agreed = self._agree(found)
        # Objects that are all missing fit any type of objects.
        for name, column in found.items():
            agreed = self._agreed.get(name)
            if agreed is None or agreed.plain or column.plain:
                continue
            if column.kind == NOTHING:
                found[name] = OutputColumn(agreed.kind, column.shape)
            elif agreed.kind == NOTHING and column.shape == agreed.shape:
                # Another rank may settle it on another type: finish() compares the parts.
                self._agreed[name] = column
        if found != self._agreed:
            raise ConfigError(
                f"the predictor returned {_describe(found)} for one batch, but "
                f"{_describe(self._agreed)} for another. All batches need the same columns of the "
                f"same types: convert them, for example with astype('float64')."
            )
        self._part_type.check_values(columns)
        return {name: columns[name] for name in self._agreed}

    def _usual(self, batch: Mapping[str, Any]) -> Batch | None:
        """Return a batch of NumPy columns that match the agreed ones, None for another batch."""
        agreed = self._agreed
        if agreed is None or batch.keys() != agreed.keys():
            return None
        rows = set()
        for name, values in batch.items():
            if type(values) is not np.ndarray or not values.ndim:
                return None
            rows.add(len(values))
            if (values.dtype.str, values.shape[1:]) != agreed[name].plain:
                return None
        return {name: batch[name] for name in agreed} if len(rows) == 1 else None

    def _agree(self, found: Mapping[str, OutputColumn]) -> dict[str, OutputColumn]:
        content = json.dumps([[n, c.kind, c.shape] for n, c in found.items()]).encode()
        own = name_beside(self._path)
        if not self._path.exists():
            own.write_bytes(content)
            try:
                # Unlike a rename, a link never replaces the file of another rank.
                os.link(own, self._path)
            except FileExistsError:
                pass
            except OSError:
                os.replace(own, self._path)
            own.unlink(missing_ok=True)
        return read_columns(self._path)


def read_columns(path: Path) -> dict[str, OutputColumn]:
    """Return the columns that were agreed on. Not collective."""
    content = json.loads(path.read_bytes())
    return {name: OutputColumn(kind, tuple(shape)) for name, kind, shape in content}


def _describe(columns: Mapping[str, OutputColumn]) -> str:
    return ", ".join(f"{name!r} {column}" for name, column in columns.items())
