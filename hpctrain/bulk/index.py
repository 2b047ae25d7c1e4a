"""`StateIndex`: which file of a state holds which region of which tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any, overload

from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.errors import CheckpointError

INDEX_NAME = "state.json"
"""Of the index's file. It is written last: a directory without one holds no state."""
FORMAT = 1


def file_name(writer: int, writers: int) -> str:
    """Return the name of one writer's file, counted from 0. Not collective."""
    return f"state-{writer + 1:05d}-of-{writers:05d}.safetensors"


@dataclass(frozen=True, kw_only=True)
class IndexedFile:
    """A file, as far as all that is known before its digests."""

    name: str
    """Relative to the directory of the index."""
    layout: StateFile

    def encode(self) -> bytes:
        """Return what the index's file has of it. Not collective."""
        content = {
            "name": self.name,
            "header_bytes": self.layout.header_bytes,
            "data_bytes": self.layout.data_bytes,
            "pieces": [
                [chunk.name, chunk.dtype, list(chunk.shape), list(chunk.offsets), start]
                for chunk, start in zip(self.layout.chunks, self.layout.starts, strict=True)
            ],
        }
        return json.dumps(content, separators=(",", ":")).encode()


class PlannedFiles(Sequence[IndexedFile]):
    """Files that are made when they are asked for: those of thousands of ranks fill a memory.

    Parameters
    ----------
    number
        How many.
    file
        Returns a file, given its number.
    """

    def __init__(self, number: int, file: Callable[[int], IndexedFile]) -> None:
        self._number, self._file = number, file

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, index: int) -> IndexedFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[IndexedFile]: ...

    def __getitem__(self, index: int | slice) -> IndexedFile | Sequence[IndexedFile]:
        found = range(self._number)[index]
        return self._file(found) if isinstance(found, int) else [self._file(i) for i in found]

    @cached_property
    def encoded(self) -> Sequence[bytes]:
        """What the index's file has of each: a run writes the same again and again."""
        return [file.encode() for file in self]


@dataclass(frozen=True, kw_only=True)
class StateIndex:
    """All files of a state, and what is no tensor."""

    files: Sequence[IndexedFile]
    shapes: Mapping[str, tuple[int, ...]]
    """Of the whole tensors, by name; of all types that safetensors has."""
    values: Mapping[str, Any]
    """What is no tensor, by name; JSON."""
    plain_names: bool = False
    """Whether other programs may have named the tensors, without the name of the whole model."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that are another one, which `shapes` and a file have: shared weights."""
    types: Mapping[str, str] | None = None
    """What torch calls the type of a tensor, by name, where safetensors has none: the files have
    its bits in another type, and the real and imaginary parts of complex128 in a dimension more,
    which `shapes` has too. None if it is not known, as of other programs' files."""
    trees: Mapping[str, Any] = field(default_factory=dict)
    """The dicts, lists and tuples of trees with tensors in them that may have other ones when they
    are loaded, by name; JSON. Tensors and values are below them, by their names."""

    def dtypes(self) -> tuple[tuple[str, str], ...]:
        """Return names of tensors, each with the type that files have of it. Not collective.

        In the order of the files. Types are as safetensors calls them; there is more than one of a
        tensor in a state that cannot be loaded.
        """
        chunks = (chunk for file in self.files for chunk in file.layout.chunks)
        return tuple(dict.fromkeys((chunk.name, chunk.dtype) for chunk in chunks))

    def encode(self) -> bytes:
        """Return the content of the index's file. Not collective."""
        content = {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "values": dict(self.values),
            "aliases": dict(self.aliases),
            "types": None if self.types is None else dict(self.types),
            "trees": dict(self.trees),
        }
        if isinstance(self.files, PlannedFiles):
            files = self.files.encoded
        else:
            files = [file.encode() for file in self.files]
        # Of thousands of ranks it is large: no second copy of it is made.
        encoded = BytesIO()
        encoded.write(b'{"format":%d,"files":[' % FORMAT)
        for number, file in enumerate(files):
            encoded.write(b"," if number else b"")
            encoded.write(file)
        encoded.write(b"]," + json.dumps(content, separators=(",", ":")).encode()[1:])
        return encoded.getvalue()

    @staticmethod
    def decode(content: bytes, *, name: str) -> StateIndex:
        """Return what `encode` wrote. Not collective.

        Raises
        ------
        CheckpointError
            If it is torn, of a newer format, or names a file outside of its directory.
        """
        try:
            loaded = json.loads(content)
            if loaded["format"] > FORMAT:
                raise CheckpointError(
                    f"{name} has format {loaded['format']}, and this hpctrain reads up to "
                    f"{FORMAT}. Use a newer hpctrain."
                )
            return StateIndex(
                files=tuple(_decode_file(file) for file in loaded["files"]),
                shapes={key: tuple(shape) for key, shape in loaded["shapes"].items()},
                values=loaded["values"],
                aliases=loaded["aliases"],
                # Older versions did not write them.
                types=loaded.get("types"),
                trees=loaded.get("trees", {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{name} is damaged: it is torn. Load another checkpoint."
            ) from error


def _decode_file(file: Mapping[str, Any]) -> IndexedFile:
    chunks = [
        Chunk(name=name, dtype=dtype, shape=tuple(shape), offsets=tuple(offsets))
        for name, dtype, shape, offsets, _ in file["pieces"]
    ]
    # A name that leads out of the directory would have another file read, or written over.
    if (
        not isinstance(name := file["name"], str)
        or name in ("", ".", "..")
        or set(name) & set("/\0")
    ):
        raise ValueError(f"{name!r} is not the name of a file of the state")
    layout = StateFile(
        chunks=tuple(chunks),
        starts=tuple(start for *_, start in file["pieces"]),
        data_bytes=file["data_bytes"],
        header_bytes=file["header_bytes"],
    )
    return IndexedFile(name=name, layout=layout)
