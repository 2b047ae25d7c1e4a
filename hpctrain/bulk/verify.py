"""`verify_state_file`: whether a file of tensors is what was written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from hpctrain.bulk.block_reader import BlockReader, scratch_memory
from hpctrain.bulk.header import read_start
from hpctrain.bulk.state_file import file_digest
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.errors import CheckpointError

_THREADS = 2


def verify_state_file(path: Path, digest: str, *, quick: bool = False) -> str | None:
    """Return how a file differs from what was written, or None. Not collective.

    Parameters
    ----------
    digest
        `file_digest` of what was written.
    quick
        Compare the size and the header only, which takes no time: this finds torn, truncated and
        exchanged files, not flipped bits.

    Raises
    ------
    UnreadableError
        If it cannot be read just now: it may be good or damaged.
    """
    try:
        start = read_start(path)
        layout = start.layout()
        if (found := file_digest(start.header)) != digest:
            return f"{path} has a header of digest {found}, but {digest} was written."
        if quick or not layout.digests:
            return None
        with BlockReader(path, layout) as reader:
            threads = min(_THREADS, layout.blocks)
            scratch: SimpleQueue[memoryview] = SimpleQueue()
            for _ in range(threads):
                scratch.put(scratch_memory())

            def verify(block: int) -> None:
                memory = scratch.get()
                try:
                    for _ in reader.read_parts(block, memory):
                        pass
                finally:
                    scratch.put(memory)

            with ThreadPoolExecutor(threads, thread_name_prefix="hpctrain-verify") as pool:
                try:
                    for _ in pool.map(verify, range(layout.blocks)):
                        pass
                except CheckpointError:
                    pool.shutdown(cancel_futures=True)
                    raise
    except UnreadableError:
        raise
    except CheckpointError as error:
        return str(error)
    return None
