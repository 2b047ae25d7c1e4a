"""Writing a state's file: whole or not at all, on any filesystem, and a full disk is explained."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from hpctrain.bulk.ring import Ring
from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES, Chunk, StateFile, file_digest
from hpctrain.bulk.state_file_writer import StateFileWriter, write_state_file
from hpctrain.errors import CheckpointError


@pytest.fixture(scope="module")
def ring() -> Ring:
    return Ring(3)


def _layout(data_bytes: int) -> StateFile:
    return StateFile.plan([Chunk(name="w", dtype="U8", shape=(data_bytes,), offsets=(0,))])


def _content(block: int, size: int) -> bytes:
    return bytes([block + 1]) * size


def _fill(block: int, memory: memoryview) -> Iterator[int]:
    """Fill it in two parts."""
    for part in (memory[: len(memory) // 2], memory):
        part[:] = _content(block, len(part))
        yield len(part)


def _expected(layout: StateFile) -> tuple[bytes, bytes]:
    blocks = []
    for block in range(layout.blocks):
        start, stop = layout.extent(block)
        blocks.append(_content(block, stop - start))
    return layout.header([xxhash.xxh3_64_hexdigest(b) for b in blocks]), b"".join(blocks)


@pytest.mark.parametrize(
    "data_bytes",
    [0, 1, PAGE_BYTES, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES - 1],
)
def test_a_file_holds_header_and_data_and_not_a_byte_more(
    tmp_path: Path, ring: Ring, data_bytes: int
) -> None:
    layout = _layout(data_bytes)
    written = write_state_file(tmp_path / "f", layout, _fill, ring=ring)
    header, data = _expected(layout)
    assert (tmp_path / "f").read_bytes() == header + data
    assert written.size == (tmp_path / "f").stat().st_size
    assert written.digest == file_digest(header)


def test_a_filesystem_without_o_direct_gets_the_same_file(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _layout(BLOCK_BYTES + 5000)
    opened = os.open

    def refuse(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    write_state_file(tmp_path / "f", layout, _fill, ring=ring)
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"".join(_expected(layout))


def test_a_filesystem_that_refuses_o_direct_only_when_written_to_gets_the_same_file(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    layout = _layout(2 * BLOCK_BYTES + 1)
    write = os.pwrite
    # Both threads are refused before either can do something about it.
    first_writes = [threading.Barrier(2)]

    def refuse(descriptor: int, data: memoryview, position: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            if threading.current_thread() is not threading.main_thread():
                first_writes[0].wait(20)
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", refuse)
    write_state_file(tmp_path / "f", layout, _fill, ring=ring)
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"".join(_expected(layout))


def test_writes_that_end_early_are_gone_on_with(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _layout(BLOCK_BYTES + 1)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[: 3 * 2**20], at))
    write_state_file(tmp_path / "f", layout, _fill, ring=ring)
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"".join(_expected(layout))


def test_a_full_disk_is_an_error_that_names_file_bytes_and_what_to_do(
    tmp_path: Path, ring: Ring
) -> None:
    """A file size limit, as the kernel has it, stands for a disk: it is hit in the same call."""
    script = textwrap.dedent(
        f"""
        import resource, signal, sys
        from pathlib import Path
        from hpctrain.bulk.ring import Ring
        from hpctrain.bulk.state_file import BLOCK_BYTES, Chunk, StateFile
        from hpctrain.bulk.state_file_writer import write_state_file
        from hpctrain.errors import CheckpointError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BLOCK_BYTES, 2 * BLOCK_BYTES))
        shape = (4 * BLOCK_BYTES,)
        layout = StateFile.plan([Chunk(name="w", dtype="U8", shape=shape, offsets=(0,))])
        ring = Ring(2)
        fill = lambda block, memory: [len(memory)]
        for _ in range(2):
            try:
                write_state_file(Path({str(tmp_path / "f")!r}), layout, fill, ring=ring)
            except CheckpointError as error:
                print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("could not be written: File too large, after ") == 2
    assert f"{tmp_path / 'f'} of 33558528 bytes" in done.stdout
    assert "training can go on" in done.stdout
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"No space left on device.*num_to_keep"),
        (errno.EDQUOT, r"Disk quota exceeded.*num_to_keep"),
        (errno.EIO, r"Input/output error, after 0 bytes\. Look at the filesystem"),
    ],
)
def test_a_disk_that_fails_is_explained_and_the_next_file_is_written(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def fail(descriptor: int, data: memoryview, position: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(CheckpointError, match=message):
        write_state_file(tmp_path / "f", _layout(5 * BLOCK_BYTES), _fill, ring=ring)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    write_state_file(tmp_path / "f", _layout(5 * BLOCK_BYTES), _fill, ring=ring)


def test_a_small_disk_takes_what_fits_and_keeps_what_it_has(tmp_path: Path, ring: Ring) -> None:
    mounting = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(tmp_path)]
    mounted = subprocess.run(mounting, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount tmpfs: {mounted.stderr.decode()}")
    try:
        small, large = _layout(BLOCK_BYTES + 1), _layout(6 * BLOCK_BYTES)
        write_state_file(tmp_path / "first", small, _fill, ring=ring)
        with pytest.raises(CheckpointError, match="No space left on device"):
            write_state_file(tmp_path / "second", large, _fill, ring=ring)
        write_state_file(tmp_path / "third", small, _fill, ring=ring)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "third"]
        for name in ("first", "third"):
            assert (tmp_path / name).read_bytes() == b"".join(_expected(small))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_that_cannot_be_made_is_explained(tmp_path: Path, ring: Ring) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory, after 0 bytes"):
        write_state_file(tmp_path / "gone" / "f", _layout(1), _fill, ring=ring)


def test_what_fill_raises_leaves_no_file_and_the_ring_whole(tmp_path: Path, ring: Ring) -> None:
    def fail(block: int, memory: memoryview) -> Iterator[int]:
        if block == 2:
            raise ValueError("block 2")
        return _fill(block, memory)

    with pytest.raises(ValueError, match="block 2"):
        write_state_file(tmp_path / "f", _layout(4 * BLOCK_BYTES), fail, ring=ring)
    assert not list(tmp_path.iterdir())
    blocks = [ring.take() for _ in range(ring.blocks)]
    for block in blocks:
        ring.give(block)


def test_a_thread_that_fails_whatever_it_is_finishes_no_file(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: memoryview, position: int) -> int:
        raise MemoryError

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(MemoryError):
        write_state_file(tmp_path / "f", _layout(9 * BLOCK_BYTES), _fill, ring=ring)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", [0, 1])
def test_where_no_memory_is_left_for_threads_the_file_is_written_all_the_same(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    layout = _layout(5 * BLOCK_BYTES - 1)
    write_state_file(tmp_path / "f", layout, _fill, ring=ring)
    assert (tmp_path / "f").read_bytes() == b"".join(_expected(layout))


def test_the_header_is_the_last_to_be_written(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _layout(3 * BLOCK_BYTES)
    write, positions = os.pwrite, []

    def watched(descriptor: int, data: memoryview, position: int) -> int:
        positions.append(position)
        return write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", watched)
    with StateFileWriter(tmp_path / "f", layout, ring=ring) as writer:
        for block in (2, 0, 1):
            memory = ring.take()
            list(_fill(block, memory))
            writer.put(block, memory)
        writer.finish()
    assert positions[-1] == 0
    assert 0 not in positions[:-1]
    assert (tmp_path / "f").read_bytes() == b"".join(_expected(layout))


def test_no_thread_outlives_its_file(tmp_path: Path, ring: Ring) -> None:
    write_state_file(tmp_path / "f", _layout(100), _fill, ring=ring)
    assert not [t for t in threading.enumerate() if t.name.startswith("hpctrain-write")]


def test_memory_of_a_ring_is_aligned_for_the_disk() -> None:
    import ctypes

    ring = Ring(2)
    first, second = ring.take(), ring.take()
    for block in (first, second):
        assert len(block) == BLOCK_BYTES
        assert ctypes.addressof(ctypes.c_char.from_buffer(block)) % PAGE_BYTES == 0
