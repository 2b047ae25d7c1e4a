"""Blocks are read from the page cache and past it, into many memories, and damage is seen."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from hpctrain.bulk.block_reader import BlockReader, scratch_memory
from hpctrain.bulk.header import read_layout, read_start
from hpctrain.bulk.page_cache import CachedPages
from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES, Chunk, StateFile, file_digest
from hpctrain.bulk.striping import filesystem_type
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.bulk.verify import verify_state_file
from hpctrain.errors import CheckpointError
from tests.damage import flip_bit

PIECES = [
    Chunk(name="weight", dtype="F32", shape=(1500, 3000), offsets=(0, 0)),
    Chunk(name="bias", dtype="F32", shape=(1001,), offsets=(0,)),
    Chunk(name="flags", dtype="BOOL", shape=(3,), offsets=(0,)),
]


TMPFS = 0x01021994
PAGES = range(2**20, 2 * BLOCK_BYTES, PAGE_BYTES)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, bytes]:
    """Return a file of three blocks, of which nothing is in the page cache, and its data."""
    layout = StateFile.plan(PIECES)
    data = os.urandom(layout.data_bytes)
    extents = [layout.extent(block) for block in range(layout.blocks)]
    digests = [xxhash.xxh3_64_hexdigest(data[start:stop]) for start, stop in extents]
    path = tmp_path / "state.safetensors"
    path.write_bytes(layout.header(digests) + data)
    _evict(path)
    return path, data


def _evict(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(reader: BlockReader, block: int) -> bytes:
    return b"".join(map(bytes, reader.read_parts(block, scratch_memory())))


def test_blocks_are_read_past_the_page_cache_and_from_it(written: tuple[Path, bytes]) -> None:
    path, data = written
    for _ in range(2):
        with BlockReader(path, read_layout(path)) as reader:
            blocks = [_read(reader, block) for block in range(reader.layout.blocks)]
        assert len(blocks) == 3
        assert b"".join(blocks) == data
        path.read_bytes()


@pytest.mark.parametrize("cached", [False, True])
def test_a_block_goes_into_many_memories(written: tuple[Path, bytes], cached: bool) -> None:
    path, data = written
    if cached:
        path.read_bytes()
    memories = [memoryview(bytearray(size)) for size in (1, 4096, *[0] * 3, *[5] * 1500, 77)]
    memories.append(memoryview(bytearray(BLOCK_BYTES - sum(map(len, memories)))))
    with BlockReader(path, read_layout(path)) as reader:
        reader.read_into(0, memories, scratch_memory())
    assert b"".join(memories) == data[:BLOCK_BYTES]


@pytest.mark.parametrize("owned", [True, False])
def test_what_is_not_cached_is_not_read_through_the_page_cache(
    written: tuple[Path, bytes], owned: bool
) -> None:
    path, data = written
    if filesystem_type(path.parent) == TMPFS:
        pytest.skip("this filesystem is nothing but a page cache")
    if not owned:
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(path, 12345, 12345)
    memory, scratch = memoryview(bytearray(BLOCK_BYTES)), scratch_memory()
    with BlockReader(path, read_layout(path)) as reader, open(path, "rb") as file:
        reader.read_into(0, [memory], scratch)
        assert memory == data[:BLOCK_BYTES]
        assert _read(reader, 1) == data[BLOCK_BYTES : 2 * BLOCK_BYTES]
        # Behind what the kernel read ahead of the header. Looking at others' files reads pages.
        os.fchown(file.fileno(), os.geteuid(), -1)
        with closing(CachedPages(file.fileno())) as pages:
            cached = [pages.has(page, PAGE_BYTES) for page in PAGES]
        assert sum(cached) <= (0 if owned else 4)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_flipped_bit_names_block_tensors_and_both_digests(
    written: tuple[Path, bytes], cached: bool, in_place: bool
) -> None:
    path, data = written
    layout = read_layout(path)
    flip_bit(path, path.stat().st_size - 1)
    _evict(path)
    if cached:
        path.read_bytes()

    def read(block: int) -> memoryview:
        if not in_place:
            return memoryview(_read(reader, block))
        memory = memoryview(bytearray(reader.layout.extent(block)[1] - block * BLOCK_BYTES))
        reader.read_into(block, [memory[:70_001], memory[70_001:]], scratch_memory())
        return memory

    with BlockReader(path, layout) as reader:
        assert read(1) == data[BLOCK_BYTES : 2 * BLOCK_BYTES]
        with pytest.raises(CheckpointError, match="block 2 of 3, with weight, bias, flags, has"):
            read(2)


def test_damage_names_tensors_that_the_reader_wants_nothing_of(written: tuple[Path, bytes]) -> None:
    path, _ = written
    layout = read_layout(path)
    flip_bit(path, -1)
    wanted = replace(layout, chunks=layout.chunks[:1], starts=layout.starts[:1])
    with (
        closing(BlockReader(path, wanted)) as reader,
        pytest.raises(CheckpointError, match=r"with weight, bias, flags, has digest"),
    ):
        _read(reader, layout.blocks - 1)


def test_a_file_that_shrank_meanwhile_is_torn(written: tuple[Path, bytes]) -> None:
    path, _ = written
    layout = read_layout(path)
    os.truncate(path, path.stat().st_size - 10)
    with (
        BlockReader(path, layout) as reader,
        pytest.raises(CheckpointError, match="it ends before block 2 of 3 does"),
    ):
        _read(reader, 2)


@pytest.mark.parametrize("most", [3 * 2**20, 3 * 2**20 + 17])
@pytest.mark.parametrize("cached", [False, True])
def test_reads_that_end_early_are_gone_on_with(
    written: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch, most: int, cached: bool
) -> None:
    path, data = written
    if cached:
        path.read_bytes()
    preadv = os.preadv

    def short(descriptor: int, memories: list[memoryview], *rest: int) -> int:
        return preadv(descriptor, [memories[0][: min(most, len(memories[0]) // 2 + 1)]], *rest)

    with BlockReader(path, read_layout(path)) as reader:
        monkeypatch.setattr(os, "preadv", short)
        blocks = [_read(reader, block) for block in range(3)]
    assert b"".join(blocks) == data


def test_a_file_that_is_closed_again_closes_no_other(written: tuple[Path, bytes]) -> None:
    path, _ = written
    reader = BlockReader(path, read_layout(path))
    reader.close()
    with open(path, "rb") as one, open(path, "rb") as two:
        reader.close()
        assert one.read(1) == two.read(1) != b""


def test_a_sound_file_verifies(written: tuple[Path, bytes]) -> None:
    path, _ = written
    digest = file_digest(read_start(path).header)
    assert verify_state_file(path, digest) is None
    assert verify_state_file(path, digest, quick=True) is None


def test_verifying_finds_every_kind_of_damage(written: tuple[Path, bytes]) -> None:
    path, _ = written
    digest = file_digest(read_start(path).header)
    assert "but 0123 was written" in str(verify_state_file(path, "0123", quick=True))
    flip_bit(path, path.stat().st_size // 2)
    assert verify_state_file(path, digest, quick=True) is None
    assert "block 1 of 3" in str(verify_state_file(path, digest))
    flip_bit(path, 100)
    assert str(path) in str(verify_state_file(path, digest, quick=True))
    os.truncate(path, path.stat().st_size - 1)
    assert str(path) in str(verify_state_file(path, digest, quick=True))
    path.unlink()
    assert "is missing" in str(verify_state_file(path, digest))


def test_a_file_that_is_deleted_while_its_header_is_read_has_the_size_it_had(
    written: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = written
    size, begin = path.stat().st_size, os.fstat

    def deleting(descriptor: int) -> os.stat_result:
        path.unlink(missing_ok=True)
        return begin(descriptor)

    monkeypatch.setattr(os, "fstat", deleting)
    digest = file_digest(path.read_bytes()[:PAGE_BYTES])
    assert read_layout(path).size == size
    assert "is missing" in str(verify_state_file(path, digest))


def test_a_filesystem_that_does_not_tell_the_size_is_a_complaint(
    written: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    path, _ = written
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        with pytest.raises(CheckpointError, match="cannot be read: Input/output error"):
            read_layout(path)


def test_what_says_nothing_of_a_file_is_no_difference(
    written: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> os.stat_result:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    path, _ = written
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        with pytest.raises(UnreadableError, match="cannot be read: Cannot allocate memory"):
            verify_state_file(path, "0123")


def test_files_in_memory_and_of_other_programs_are_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    shm = Path("/dev/shm")
    directory = shm if shm.is_dir() else tmp_path
    path = directory / f"hpctrain-test-{os.getpid()}.safetensors"
    tensor = torch.arange(BLOCK_BYTES // 4, dtype=torch.float32)
    try:
        save_file({"a": tensor}, path)
        layout = read_layout(path)
        assert layout.digests == ()
        with BlockReader(path, layout) as reader:
            assert _read(reader, 0) == tensor.numpy().tobytes()
    finally:
        path.unlink(missing_ok=True)
