"""The header of a file of tensors: its layout, and a digest that stands for the whole file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hpctrain.bulk.state_file import PAGE_BYTES, StateFile, file_digest, header_length, is_ours
from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.errors import CheckpointError
from hpctrain.regular_file import open_regular


@dataclass(frozen=True, kw_only=True)
class FileStart:
    """What a file of tensors begins with, and its size, both of the same moment."""

    path: Path
    header: bytes
    """The bytes before the data: fewer if the file ends there, or is of another kind."""
    size: int
    """Bytes of the whole file."""

    def layout(self) -> StateFile:
        """Return the layout that the header describes; see `StateFile.parse`. Not collective."""
        return StateFile.parse(self.header, size=self.size, name=str(self.path))


def read_start(path: Path) -> FileStart:
    """Return the first bytes of a file, up to its data, and its size. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, or cannot be read: `UnreadableError` if that may pass.
    """
    try:
        with open_regular(path, follow_links=True) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(PAGE_BYTES)
            try:
                length = header_length(header[:8], name=str(path))
            except CheckpointError:
                # No safetensors file: the error follows where its layout is read.
                length = len(header)
            while len(header) < length and (more := file.read(length - len(header))):
                header += more
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except OSError as error:
        kind = UnreadableError if is_passing(error) else CheckpointError
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
    return FileStart(path=path, header=header[:length], size=size)


def read_layout(path: Path) -> StateFile:
    """Return the layout of a file, with digests if it is one of ours. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, cannot be read, or is damaged.
    """
    return read_start(path).layout()


def state_file_digest(path: Path) -> tuple[int, str] | None:
    """Return size in bytes and digest of a state's file; None if it is another kind of file.

    Not collective. Reads the header only, which has the digests of all blocks.

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
