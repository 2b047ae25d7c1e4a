"""Files that are a row each: bytes and images."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, is_integer, items_of
from hpctrain.data.batch import Batch
from hpctrain.data.conform import conform, empty
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema
from hpctrain.data.source import Blocks, SingleRows, Source, block_rows
from hpctrain.errors import ConfigError

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")

_MEASURED = 64
_OPENING_BYTES = 16 * 2**10
"""To open a file takes about as long as to read so much."""
_OBJECT = Column(dtype=np.dtype(object))
# Types of Pillow's pixels by mode; those of other modes are bytes.
_TYPES = {"1": np.bool_, "I": np.int32, "F": np.float32, "I;16": np.uint16}


class LoadFile(Protocol):
    """Reads one file. A frozen value."""

    @property
    def column(self) -> str:
        """Name of the column."""

    def __call__(self, path: str) -> Any:
        """Return the value of the row. Not collective."""


@dataclass(frozen=True)
class LoadBytes:
    """All bytes of a file."""

    column: str = "bytes"

    def __call__(self, path: str) -> bytes:
        """Return the bytes. Not collective."""
        with open(path, "rb") as file:
            return file.read()


@dataclass(frozen=True)
class LoadImage:
    """An image as an array of height, width and, if there are several, channels."""

    size: tuple[int, int] | None
    """Height and width to resize it to; None keeps its own."""
    mode: str | None
    """Pillow's mode to convert it to, such as "RGB"; None keeps its own."""
    column: str = "image"

    def __call__(self, path: str) -> np.ndarray:
        """Return the pixels. Not collective."""
        with _opened(path) as (pillow, image):
            if self.size is not None:
                height, width = self.size
                image = image.resize((width, height), resample=pillow.BILINEAR)
            return np.array(image if self.mode is None else image.convert(self.mode))

    def describe(self, path: str) -> Column:
        """Return type and shape of the pixels; only the head of the file is read.

        Not collective.
        """
        with _opened(path) as (_, image):
            mode = self.mode or image.mode
            shape = self.size or (image.height, image.width)
        bands = len(require("PIL.ImageMode", to="to read images").getmode(mode).bands)
        dtype = np.dtype(_TYPES.get(mode, np.uint8))
        return Column(dtype=dtype, shape=(*shape, bands) if bands > 1 else tuple(shape))


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Any]]:
    """Give Pillow, and an image that it has opened."""
    pillow = require("PIL.Image", to="to read images", extra="images")
    try:
        with pillow.open(path) as image:
            yield pillow, image
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"{path} is not an image that Pillow can read: {error}. Leave it out of the paths, or "
            f"write it in another format."
        ) from error


@dataclass(frozen=True, kw_only=True)
class FileRows(SingleRows):
    """Files, a row each; read several at a time."""

    paths: tuple[str, ...]
    load: LoadFile
    schema: Schema

    def __getstate__(self) -> dict[str, Any]:
        """Compress the paths, of which there may be a million."""
        packed = zlib.compress("\0".join(self.paths).encode("utf-8", "surrogateescape"))
        return {"paths": packed, "load": self.load, "schema": self.schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Decompress the paths."""
        paths = zlib.decompress(state["paths"]).decode("utf-8", "surrogateescape").split("\0")
        for name, value in {**state, "paths": tuple(paths)}.items():
            object.__setattr__(self, name, value)

    @property
    def num_rows(self) -> int:
        """Number of files."""
        return len(self.paths)

    def files(self) -> list[str]:
        """Return the paths. Not collective."""
        return list(self.paths)

    def blocks(self) -> Blocks:
        """Return blocks of a few MiB, for objects of at most 64 files. Not collective."""
        rows = block_rows(self.schema)
        return Blocks([(self.num_rows, min(rows, 64) if self.schema.objects else rows)])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        paths = self.paths[rows.start : rows.stop]
        batch = {}
        for name in schema:
            values = list(paths) if name == "path" else describe_all(paths, self.load)
            batch[name] = _column(values, schema[name])
        where = f"{paths[0]} to {paths[-1]}"
        return conform(batch, schema, where=where, advice="Give a size= and a mode=.")


def open_binary_files(paths: Paths, *, include_paths: bool) -> Source:
    """Return a row for each file. Not collective."""
    files = tuple(find_files(paths, [""]))
    # Nothing but the size of some files, spread over all.
    some = files[:: -(-len(files) // _MEASURED)]
    size = sum(describe_all(some, os.path.getsize)) // len(some)
    return _file_rows(
        files, LoadBytes(), replace(_OBJECT, object_bytes=max(size, _OPENING_BYTES)), include_paths
    )


def open_images(
    paths: Paths, *, size: tuple[int, int] | None, mode: str | None, include_paths: bool
) -> Source:
    """Return a row for each image. Not collective. The headers of all files are read now.

    Raises
    ------
    ConfigError
        If a file is missing or is not an image.
    """
    files = tuple(find_files(paths, [*IMAGES, *(ending.upper() for ending in IMAGES)]))
    load = LoadImage(None if size is None else _size(size), _mode(mode))
    columns = set(describe_all(files, load.describe))
    # Images of different sizes are objects.
    largest = max(column.row_bytes for column in columns)
    column = columns.pop() if len(columns) == 1 else replace(_OBJECT, object_bytes=largest)
    return _file_rows(files, load, column, include_paths)


def _size(size: Any) -> tuple[int, int]:
    lengths = items_of(size)
    if not lengths or len(lengths) != 2 or not all(is_integer(n) and n > 0 for n in lengths):
        raise ConfigError(
            f"size={shown(size)} is not the size of an image. Give its height and width, such as "
            f"(224, 224)."
        )
    return int(lengths[0]), int(lengths[1])


def _mode(mode: Any) -> str | None:
    if mode is None:
        return None
    try:
        require("PIL.ImageMode", to="to read images", extra="images").getmode(mode)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"mode={shown(mode)} is not a mode of Pillow. Give one, such as 'RGB' or 'L'."
        ) from error
    return str(mode)


def _file_rows(
    files: tuple[str, ...], load: LoadFile, column: Column, include_paths: bool
) -> Source:
    columns = [(load.column, column)] + (
        [("path", replace(_OBJECT, object_bytes=sys.getsizeof(files[0])))]
        if flag("include_paths", include_paths)
        else []
    )
    return FileRows(paths=files, load=load, schema=Schema(tuple(columns)))


def _column(values: Sequence[Any], column: Column) -> np.ndarray:
    if column.dtype != object:
        shapes = {value.shape for value in values}
        if len(shapes) == 1:
            return np.stack(values)
    array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        array[at] = value
    return array
