"""Whether a state's file is what it was: a digest of its header stands for all of it."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from hpctrain.bulk.state_file import StateFile, file_digest, header_length
from hpctrain.errors import CheckpointError


def state_file_digest(path: Path) -> tuple[int, str] | None:
    """Return size in bytes and digest of a state's file; None if it is another kind of file.

    Not collective. Reads the header only: whoever wrote it has digested all blocks.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    if path.suffix != ".safetensors":
        return None
    try:
        layout, header = _read_header(path)
    except CheckpointError:
        return None
    return (layout.size, file_digest(header)) if layout.digests else None


def verify_state_file(path: Path, digest: str, *, quick: bool = False) -> str | None:
    """Return how a state's file differs from what was committed, or None.

    Not collective.

    Parameters
    ----------
    digest
        What was committed.
    quick
        Whether to look at its size and header only, and not at every block.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    try:
        layout, header = _read_header(path)
    except CheckpointError as error:
        return str(error)
    if file_digest(header) != digest:
        return f"{path} is damaged: its header is not the one that was committed."
    if quick:
        return None
    with open(path, "rb", buffering=0) as file:
        file.seek(layout.header_bytes)
        for block, wanted in enumerate(layout.digests):
            start, stop = layout.extent(block)
            if xxhash.xxh3_64_hexdigest(file.read(stop - start)) != wanted:
                return f"{path} is damaged: block {block} of {layout.blocks} is not what it was."
    return None


def _read_header(path: Path) -> tuple[StateFile, bytes]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        header = first + file.read(header_length(first, name=str(path)) - len(first))
    return StateFile.parse(header, size=size, name=str(path)), header
