"""`StateIndex`: which file of a state holds which region of which tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class StateIndex:
    """All files of a state, and what is no tensor."""

    files: tuple[IndexedFile, ...]
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

    def encode(self) -> bytes:
        """Return the content of the index's file. Not collective."""
        content = {
            "format": FORMAT,
            "files": [
                {
                    "name": file.name,
                    "header_bytes": file.layout.header_bytes,
                    "data_bytes": file.layout.data_bytes,
                    "pieces": [
                        [chunk.name, chunk.dtype, list(chunk.shape), list(chunk.offsets), start]
                        for chunk, start in zip(file.layout.chunks, file.layout.starts, strict=True)
                    ],
                }
                for file in self.files
            ],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "values": dict(self.values),
            "aliases": dict(self.aliases),
            "types": None if self.types is None else dict(self.types),
            "trees": dict(self.trees),
        }
        return json.dumps(content, separators=(",", ":")).encode()

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
