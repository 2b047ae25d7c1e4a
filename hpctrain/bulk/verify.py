"""Whether a file is one of a state, for all of which a digest of its header stands."""

from __future__ import annotations

from pathlib import Path

from hpctrain.bulk.reader import read_start
from hpctrain.bulk.state_file import StateFile, file_digest, is_ours


def state_file_digest(path: Path) -> tuple[int, str] | None:
    """Return size in bytes and digest of a state's file; None if it is another kind of file.

    Not collective. Reads the header only: whoever wrote it has digested all blocks.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is a state's file that is cut off or torn.
    """
    found = read_state_header(path)
    return None if found is None else (found[0].size, file_digest(found[1]))


def read_state_header(path: Path) -> tuple[StateFile, bytes] | None:
    """Return layout and header of a state's file; None if it is another kind of file.

    Not collective.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is a state's file that is cut off or torn: a digest of what is left
        of it would make that pass for what was saved.
    """
    if path.suffix != ".safetensors":
        return None
    start = read_start(path)
    if not is_ours(start.header):
        return None
    layout = start.layout()
    return (layout, start.header) if layout.digests else None
