"""`VerifiedFile`: a file of a checkpoint, read block by block and compared with its digests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import xxhash

from hpctrain.bulk.block_reader import BlockReader, scratch_memory
from hpctrain.bulk.header import read_start
from hpctrain.bulk.ring import map_pages
from hpctrain.bulk.state_file import BLOCK_BYTES, StateFile, file_digest
from hpctrain.errors import CheckpointError
from hpctrain.rundir.staging import StagedFile

_NEXT = "Export another checkpoint."


class VerifiedFile:
    """A safetensors file of a checkpoint.

    Parameters
    ----------
    path
        Of the file.
    committed
        What the manifest says of it; None if the checkpoint has no manifest.
    indexed
        What the index of the state says of it; None if there is none.

    Raises
    ------
    CheckpointError
        If it is missing, cannot be read, or its header is not what was written.
    """

    def __init__(
        self, path: Path, *, committed: StagedFile | None, indexed: StateFile | None = None
    ) -> None:
        self.path = path
        self._committed = committed
        self._start = read_start(path)
        self.layout = self._start.layout()
        if committed is not None and committed.kind == "header":
            # It has the digests of all blocks, so it stands for the file.
            found = file_digest(self._start.header)
            if (self._start.size, found) != (committed.size, committed.digest):
                raise self._damaged(self._start.size, f"a header of digest {found}")
        if indexed is not None and replace(self.layout, digests=()) != replace(indexed, digests=()):
            raise CheckpointError(f"{path} is not the file that the index beside it names. {_NEXT}")

    @property
    def is_verified(self) -> bool:
        """Whether there are digests to compare it with."""
        return bool(self.layout.digests) or self._committed is not None

    def blocks(self, wanted: Collection[int]) -> Iterator[tuple[int, memoryview]]:
        """Give blocks in their order, each of which is good until the next one. Not collective.

        Parameters
        ----------
        wanted
            Their numbers. Others are read only for a digest of the whole file.

        Raises
        ------
        CheckpointError
            If it cannot be read or is not what was committed; where there is a digest of the whole
            file only, at the end.
        """
        memory, scratch = map_pages(BLOCK_BYTES), scratch_memory()
        committed = self._committed
        whole = None if committed is None or committed.kind == "header" else xxhash.xxh3_128()
        if whole is not None:
            whole.update(self._start.header)
        with BlockReader(self.path, self.layout) as reader:
            for block in range(self.layout.blocks):
                if whole is None and block not in wanted:
                    continue
                start, stop = self.layout.extent(block)
                content = memory[: stop - start]
                try:
                    reader.read_into(block, [content], scratch)
                except CheckpointError as error:
                    raise type(error)(f"{error} {_NEXT}") from error
                if whole is not None:
                    whole.update(content)
                if block in wanted:
                    yield block, content
        if whole is not None and committed is not None:
            found = whole.hexdigest()
            if (self._start.size, found) != (committed.size, committed.digest):
                raise self._damaged(self._start.size, f"digest {found}")

    def _damaged(self, size: int, found: str) -> CheckpointError:
        committed = self._committed
        assert committed is not None
        return CheckpointError(
            f"{self.path} is damaged: it has {size} bytes and {found}, but {committed.size} bytes "
            f"and digest {committed.digest} were committed. {_NEXT}"
        )
