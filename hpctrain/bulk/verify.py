"""Whether a file is one of a state, for all of which a digest of its header stands."""

from __future__ import annotations

from pathlib import Path

from hpctrain.bulk.reader import read_start
from hpctrain.bulk.state_file import StateFile, file_digest
from hpctrain.errors import CheckpointError


def state_file_digest(path: Path) -> tuple[int, str] | None:
    """Return size in bytes and digest of a state's file; None if it is another kind of file.

    Not collective. Reads the header only: whoever wrote it has digested all blocks.
    """
    found = read_state_header(path)
    return None if found is None else (found[0].size, file_digest(found[1]))


def read_state_header(path: Path) -> tuple[StateFile, bytes] | None:
    """Return layout and header of a state's file; None if it is another kind of file.

    Not collective.
    """
    if path.suffix != ".safetensors":
        return None
    try:
        start = read_start(path)
        layout = start.layout()
    except CheckpointError:
        return None
    return (layout, start.header) if layout.digests else None
