from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash

from hpctrain.bulk import copy, direct
from hpctrain.bulk.copy import Copier
from hpctrain.bulk.digest import digest_file
from hpctrain.bulk.direct import LARGE_BYTES, FileReader
from hpctrain.bulk.pace import Pace
from hpctrain.bulk.page_cache import CachedPages
from hpctrain.bulk.ring import Ring
from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES, Chunk, StateFile, file_digest
from hpctrain.bulk.state_file_writer import write_state_file
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import Bulk
from tests.processes import run_python

SIZES = (
    0,
    1,
    LARGE_BYTES - 1,
    LARGE_BYTES,
    LARGE_BYTES + 4095,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    5 * BLOCK_BYTES + 12_345,
)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk, or in memory, where there is nothing to go past."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as in_memory:
        yield Path(in_memory)


def write(path: Path, size: int) -> bytes:
    content = os.urandom(min(size, 999_983)) * (size // 999_983 + 1)
    path.write_bytes(content[:size])
    return content[:size]


def forget(path: Path) -> None:
    """Have a file on the disk, and out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_state(path: Path, size: int = 2 * BLOCK_BYTES + 100) -> bytes:
    """Write a state's file; return its header."""
    layout = StateFile.plan([Chunk(name="a", dtype="U8", shape=(size,), offsets=(0,))])
    content = memoryview(os.urandom(1000) * (size // 1000 + 1))

    def fill(block: int, memory: memoryview) -> list[int]:
        start, stop = layout.extent(block)
        memory[:] = content[start:stop]
        return [len(memory)]

    write_state_file(path, layout, fill, ring=Ring(2))
    return path.read_bytes()[: layout.header_bytes]


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_has_the_content_and_is_digested_on_its_way(folder: Path, size: int):
    content = write(folder / "source", size)
    copied = Copier().copy(folder / "source", folder / "target")
    assert (folder / "target").read_bytes() == content
    assert (copied.size, copied.digest, copied.kind) == (
        size,
        xxhash.xxh3_128_hexdigest(content),
        "content",
    )


@pytest.mark.parametrize("size", SIZES)
def test_the_digest_of_a_file_is_that_of_its_content(folder: Path, size: int):
    content = write(folder / "file", size)
    forget(folder / "file")
    assert digest_file(folder / "file") == (size, xxhash.xxh3_128_hexdigest(content))


def test_a_large_file_that_is_on_the_disk_does_not_fill_the_page_cache(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    content = write(source, 3 * BLOCK_BYTES)
    forget(source)
    Copier().copy(source, target)
    digest_file(source)
    for path in (source, target):
        with open(path, "rb") as file, closing(CachedPages(file.fileno())) as pages:
            for position in range(0, 3 * BLOCK_BYTES, PAGE_BYTES):
                assert not pages.has(position, PAGE_BYTES)
    assert target.read_bytes() == content


def test_what_was_just_written_is_read_from_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Reading it past the cache would have to write it to the disk first.
    content = write(tmp_path / "source", 2 * BLOCK_BYTES)
    read: list[int] = []
    preadv = os.preadv

    def watched(descriptor: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if len(buffers[0]) == BLOCK_BYTES:
            read.append(descriptor)
        return preadv(descriptor, buffers, position, flags)

    monkeypatch.setattr(os, "preadv", watched)
    memory = Ring(1).take()
    with FileReader(tmp_path / "source") as reader:
        for position in (0, BLOCK_BYTES):
            assert reader.read(memory, position) == BLOCK_BYTES
            assert memory == content[position : position + BLOCK_BYTES]
        assert read == [reader._cached.fileno()] * 2


def test_where_the_filesystem_refuses_to_go_past_the_cache_it_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = write(tmp_path / "source", 2 * BLOCK_BYTES + 5)
    forget(tmp_path / "source")
    real_open = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, mode)

    monkeypatch.setattr(direct.os, "open", refusing)
    copied = Copier().copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == content
    assert copied.digest == xxhash.xxh3_128_hexdigest(content)


def test_where_only_the_call_is_refused_and_not_the_file_it_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = write(tmp_path / "source", 2 * BLOCK_BYTES + 5)
    forget(tmp_path / "source")
    pwrite, preadv = os.pwrite, os.preadv

    def is_direct(descriptor: int) -> bool:
        return bool(direct.fcntl.fcntl(descriptor, direct.fcntl.F_GETFL) & os.O_DIRECT)

    def refusing_write(descriptor: int, memory: memoryview, position: int) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(descriptor, memory, position)

    def refusing_read(
        descriptor: int, buffers: list[memoryview], position: int, flags: int = 0
    ) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, position, flags)

    monkeypatch.setattr(os, "pwrite", refusing_write)
    monkeypatch.setattr(os, "preadv", refusing_read)
    Copier().copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == content


@pytest.mark.parametrize("size", [100, 2 * BLOCK_BYTES + 100])
def test_of_a_states_file_the_header_is_the_digest(folder: Path, size: int):
    header = write_state(folder / "state.safetensors", size)
    copied = Copier().copy(folder / "state.safetensors", folder / "copy.safetensors")
    content = (folder / "state.safetensors").read_bytes()
    assert (folder / "copy.safetensors").read_bytes() == content
    assert (copied.size, copied.digest, copied.kind) == (
        len(content),
        file_digest(header),
        "header",
    )


@pytest.mark.parametrize("place", [4096 + 3, 4096 + BLOCK_BYTES, 4096 + 2 * BLOCK_BYTES + 99])
def test_a_states_file_that_was_damaged_meanwhile_is_not_copied(tmp_path: Path, place: int):
    source, target = tmp_path / "state.safetensors", tmp_path / "copy.safetensors"
    write_state(source)
    content = bytearray(source.read_bytes())
    content[place] ^= 1
    source.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged: what begins at"):
        Copier().copy(source, target)
    assert not target.exists()


@pytest.mark.parametrize("kept", [4096 + BLOCK_BYTES, 4096 + 100, 3000])
def test_what_is_left_of_a_states_file_is_not_copied_as_if_it_were_all(tmp_path: Path, kept: int):
    source, target = tmp_path / "state.safetensors", tmp_path / "copy.safetensors"
    write_state(source)
    os.truncate(source, kept)
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        Copier().copy(source, target)
    assert not target.exists()


def resized_once_its_header_is_read(monkeypatch: pytest.MonkeyPatch, path: Path, size: int) -> None:
    read = copy.read_state_header

    def resizing(source: Path) -> tuple[StateFile, bytes] | None:
        found = read(source)
        os.truncate(path, size)
        return found

    monkeypatch.setattr(copy, "read_state_header", resizing)


@pytest.mark.parametrize("saved", [100, 2 * BLOCK_BYTES + 100])
def test_a_states_file_that_shrinks_by_whole_blocks_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int
):
    source, target = tmp_path / "state.safetensors", tmp_path / "copy.safetensors"
    header = write_state(source, saved)
    left = len(header) + (saved - 1) // BLOCK_BYTES * BLOCK_BYTES
    resized_once_its_header_is_read(monkeypatch, source, left)
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged: what begins at"):
        Copier().copy(source, target)
    assert not target.exists()


@pytest.mark.parametrize("saved", [100, 2 * BLOCK_BYTES])
def test_of_a_states_file_that_grows_the_state_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int
):
    source, target = tmp_path / "state.safetensors", tmp_path / "copy.safetensors"
    write_state(source, saved)
    content = source.read_bytes()
    resized_once_its_header_is_read(monkeypatch, source, len(content) + BLOCK_BYTES + 5)
    copied = Copier().copy(source, target)
    assert target.read_bytes() == content
    assert (copied.size, copied.kind) == (len(content), "header")


@pytest.mark.parametrize("size", [LARGE_BYTES - 1, 6 * BLOCK_BYTES])
def test_a_copy_that_the_disk_has_no_room_for_is_not_there(tmp_path: Path, size: int):
    write(tmp_path / "source", size)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Copier().copy(tmp_path / "source", tmp_path / "target")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "target").exists()


def test_a_source_that_ends_early_is_copied_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    content = write(tmp_path / "source", 3 * BLOCK_BYTES)
    read = FileReader.read

    def shrinking(self: FileReader, memory: memoryview, position: int) -> int:
        os.truncate(tmp_path / "source", BLOCK_BYTES + 17)
        return read(self, memory, position)

    monkeypatch.setattr(FileReader, "read", shrinking)
    copied = Copier().copy(tmp_path / "source", tmp_path / "target")
    rest = content[: BLOCK_BYTES + 17]
    assert (copied.size, copied.digest) == (len(rest), xxhash.xxh3_128_hexdigest(rest))
    assert (tmp_path / "target").read_bytes() == rest


def test_copies_keep_to_their_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slept_s: list[float] = []
    # All asks come at once, so each waits for all before it.
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept_s.append)
    monkeypatch.setattr("hpctrain.bulk.pace.time", clock)
    write(tmp_path / "source", 4 * BLOCK_BYTES)
    copier = Copier(Pace(80e6))
    copier.copy(tmp_path / "source", tmp_path / "target")
    copier.copy(tmp_path / "source", tmp_path / "again")
    # The first block of the first need not wait for anything.
    assert max(slept_s) >= 7 * BLOCK_BYTES / 80e6


MEASURED = """
import resource, sys
from pathlib import Path
from hpctrain.bulk.copy import Copier
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{limit}
copied = Copier().copy(Path(sys.argv[1]), Path(sys.argv[2]))
print(copied.size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
# Of the address space: room for one block, and none for a thread's stack beside it.
NARROW = """
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {room} * 2**20, resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize("room_mib", [None, 64, 24, 13])
def test_memory_is_bounded_and_little_of_it_will_do(tmp_path: Path, room_mib: int | None):
    content = write(tmp_path / "source", 96 * 2**20)
    limit = "" if room_mib is None else NARROW.format(room=room_mib)
    done = run_python(
        "-c", MEASURED.format(limit=limit), tmp_path / "source", tmp_path / "target", timeout_s=60
    )
    size, grown_mib = done.stdout.split()
    assert int(size) == len(content)
    assert float(grown_mib) < 40
    assert digest_file(tmp_path / "target")[1] == xxhash.xxh3_128_hexdigest(content)


def test_a_fifo_is_refused_and_keeps_no_copy_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for copy_file in (Bulk().copy, Copier().copy):
        with pytest.raises(OSError, match="it is a FIFO, not a file"):
            copy_file(tmp_path / "pipe", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
