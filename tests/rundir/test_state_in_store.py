"""Files of a state in the store: their headers stand for them, and every block is verified."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import xxhash

from hpctrain.bulk import block_reader
from hpctrain.bulk.block_reader import BlockReader
from hpctrain.bulk.direct import FileReader
from hpctrain.bulk.state_file import BLOCK_BYTES, Chunk, StateFile, file_digest
from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import Bulk
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedFile, StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from tests.damage import flip_bit

NAME = "state-00001-of-00001.safetensors"
BEYOND_THE_SCAN = 33


def write_state(path: Path, *, blocks: int = 2) -> StateFile:
    """Write a state's file that holds zeros, and takes no room on the disk."""
    chunk = Chunk(name="weight", dtype="U8", shape=(blocks * BLOCK_BYTES - 5,), offsets=(0,))
    layout = StateFile.plan([chunk])
    full, last = (
        xxhash.xxh3_64_hexdigest(bytes(n)) for n in (BLOCK_BYTES, layout.data_bytes % BLOCK_BYTES)
    )
    path.write_bytes(layout.header([full] * (blocks - 1) + [last]))
    os.truncate(path, layout.size)
    return layout


def commit_state(checkpoints: Path, report: int, *, blocks: int = 2) -> Checkpoint:
    part = staging_directory(checkpoints, attempt=1, report=report, rank=0)
    part.mkdir(parents=True)
    write_state(part / NAME, blocks=blocks)
    (part / "loop.pt").write_bytes(b"small")
    store = CheckpointStore(checkpoints)
    checkpoint, _ = store.commit(
        attempt=1,
        report=report,
        world_size=1,
        metrics={},
        parts={0: StagedPart.from_bytes(StagedPart(files=tuple(seal(part))).to_bytes())},
    )
    return checkpoint


class Reading(Bulk):
    """Remembers which files were read in full."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def digest(self, path: Path, *, durable: bool = False) -> tuple[int, str]:
        self.names.append(path.name)
        return super().digest(path, durable=durable)


def test_of_a_states_file_the_header_is_digested_and_of_others_the_content(tmp_path: Path):
    layout = write_state(tmp_path / NAME)
    (tmp_path / "loop.pt").write_bytes(b"small")
    # Another program's file of tensors has no digests that could stand for it.
    other = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    (tmp_path / "model.safetensors").write_bytes(len(other).to_bytes(8, "little") + other + b"ab")
    reading = Reading()
    files = {file.path: file for file in seal(tmp_path, reading)}
    header = (tmp_path / NAME).read_bytes()[: layout.header_bytes]
    assert files[NAME] == StagedFile(NAME, layout.size, file_digest(header), "header")
    assert {name: files[name].kind for name in ("loop.pt", "model.safetensors")} == {
        "loop.pt": "content",
        "model.safetensors": "content",
    }
    assert sorted(reading.names) == ["loop.pt", "model.safetensors"]


@pytest.mark.parametrize("kept", [4096 + BLOCK_BYTES, 4096, 3000])
def test_a_states_file_that_was_cut_off_before_the_commit_is_not_committed(
    tmp_path: Path, kept: int
):
    write_state(tmp_path / NAME)
    os.truncate(tmp_path / NAME, kept)
    with pytest.raises(CheckpointError, match=rf"{NAME} is damaged"):
        seal(tmp_path)


def test_a_file_that_only_has_the_name_of_one_of_a_state_is_digested_by_its_content(
    tmp_path: Path,
):
    (tmp_path / NAME).write_bytes(b"anything")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    assert [file.kind for file in seal(tmp_path)] == ["content", "content"]


def test_what_a_writer_has_digested_is_not_read_again(tmp_path: Path):
    write_state(tmp_path / NAME)
    (tmp_path / "state.json").write_bytes(b"{}")
    written = [StagedFile(NAME, 7, "of the writer", "header"), StagedFile("state.json", 2, "too")]
    reading = Reading()
    staging = SharedStaging(tmp_path, tmp_path / "own")
    staging.paths.update({file.path: tmp_path / file.path for file in written})
    assert staging.seal(reading, written=written) == tuple(written)
    assert reading.names == []


def test_the_manifest_tells_the_kinds_of_digests_apart(tmp_path: Path):
    checkpoint = commit_state(tmp_path, 1)
    found = json.loads((checkpoint.path / MANIFEST_NAME).read_bytes())["files"]
    assert [[name, kind] for name, _, _, kind in found] == [
        ["loop.pt", "content"],
        [NAME, "header"],
    ]
    (manifest,) = CheckpointStore(tmp_path).manifests()
    assert [file.kind for file in manifest.files] == ["content", "header"]
    CheckpointStore(tmp_path).verify(manifest)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        (20, "is damaged: its header"),
        (4096, "is damaged: block 0 of 2"),
        (4096 + 2 * BLOCK_BYTES - 6, "is damaged: block 1 of 2"),
    ],
)
def test_a_flipped_bit_in_a_states_file_is_found(tmp_path: Path, place: int, complaint: str):
    commit_state(tmp_path, 1)
    checkpoint = commit_state(tmp_path, 2)
    flip_bit(checkpoint.path / NAME, place)
    newest, (told,) = CheckpointStore(tmp_path).newest_good()
    assert newest is not None
    assert newest.report == 1
    assert complaint in told


def test_a_states_file_that_was_cut_off_or_exchanged_is_found(tmp_path: Path):
    checkpoint = commit_state(tmp_path, 1)
    store = CheckpointStore(tmp_path)
    (manifest,) = store.manifests()
    os.truncate(checkpoint.path / NAME, 10_000)
    with pytest.raises(CheckpointError, match=r"has 10000 bytes, and its header tells of"):
        store.verify(manifest, quick=True)
    write_state(checkpoint.path / NAME, blocks=3)
    with pytest.raises(CheckpointError, match=r"has a header of digest .* was written"):
        store.verify(manifest, quick=True)


@pytest.mark.parametrize("moment", ["open", "read"])
def test_a_states_file_that_cannot_be_read_just_now_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    checkpoint = commit_state(tmp_path, 1)

    error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def closed(*args: object, **options: object) -> FileReader:
        raise error

    def away(reader: BlockReader, block: int, first: int, scratch: memoryview) -> memoryview:
        raise reader._unreadable(block, error)

    store = CheckpointStore(tmp_path)
    with monkeypatch.context() as outage:
        if moment == "open":
            outage.setattr(block_reader, "FileReader", closed)
        else:
            outage.setattr(BlockReader, "read_part", away)
        message = rf"^checkpoint 000001: .*{NAME} cannot be .*Stale file handle.*try again"
        with pytest.raises(UnreadableError, match=message):
            store.newest_good()
    assert checkpoint.path.is_dir()
    assert store.newest_good()[1] == []


def test_of_a_large_state_blocks_are_left_to_those_that_load_it(tmp_path: Path):
    commit_state(tmp_path, 1)
    checkpoint = commit_state(tmp_path, 2, blocks=BEYOND_THE_SCAN)
    flip_bit(checkpoint.path / NAME, 10_000)
    store = CheckpointStore(tmp_path)
    newest, complaints = store.newest_good()
    assert newest is not None
    assert (newest.name, complaints) == ("000002", [])
    with pytest.raises(CheckpointError, match="block 0 of 33"):
        store.verify(newest)
    # Somebody could not load it.
    newest, (told,) = store.newest_good(doubtful=["000002"])
    assert newest is not None
    assert newest.name == "000001"
    assert "block 0 of 33" in told
