"""The layout of a file of tensors: safetensors and torch read it, and damage is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from hpctrain.bulk.index import IndexedFile, PlannedFiles, StateIndex
from hpctrain.bulk.state_file import (
    BLOCK_BYTES,
    PAGE_BYTES,
    Chunk,
    StateFile,
    file_digest,
    header_length,
)
from hpctrain.errors import CheckpointError

PIECES = [
    Chunk(name="flags", dtype="BOOL", shape=(3,), offsets=(0,)),
    Chunk(name="step", dtype="I64", shape=(), offsets=()),
    Chunk(name="weight", dtype="F32", shape=(1000, 3000), offsets=(1000, 0)),
    Chunk(name="none", dtype="F16", shape=(0, 4), offsets=(0, 0)),
]


def _written() -> tuple[StateFile, bytes]:
    layout = StateFile.plan(PIECES)
    data = bytes(i % 251 for i in range(layout.data_bytes))
    digests = []
    for block in range(layout.blocks):
        start, stop = layout.extent(block)
        digests.append(xxhash.xxh3_64_hexdigest(data[start:stop]))
    return layout, layout.header(digests) + data


def test_data_begin_on_a_page_and_every_piece_is_aligned_to_its_type() -> None:
    layout = StateFile.plan(PIECES)
    assert layout.header_bytes % PAGE_BYTES == 0
    assert layout.blocks == -(-layout.data_bytes // BLOCK_BYTES) == 2
    starts = {p.name: start for p, start in zip(layout.chunks, layout.starts, strict=True)}
    assert starts["step"] == 0
    assert starts["weight"] % 4 == 0
    assert [chunk.name for chunk in layout.chunks] == ["step", "weight", "none", "flags"]


def test_a_header_is_read_back_with_its_digests() -> None:
    layout, content = _written()
    stop = header_length(content[:8], name="f")
    assert stop == layout.header_bytes
    read = StateFile.parse(content[:stop], size=len(content), name="f")
    assert len(read.digests) == 2
    assert read.header(read.digests) == content[:stop]
    assert (read.chunks, read.starts, read.data_bytes) == (
        layout.chunks,
        layout.starts,
        layout.data_bytes,
    )


def test_the_digest_of_the_header_depends_on_every_byte_of_the_data() -> None:
    layout, content = _written()
    other = layout.header(["0" * 16, "1" * 16])
    assert file_digest(other) != file_digest(content[: layout.header_bytes])


def test_safetensors_and_torch_read_the_file(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    _, content = _written()
    (tmp_path / "a.safetensors").write_bytes(content)
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded["weight"].shape == (1000, 3000)
    assert loaded["step"].dtype is torch.int64
    assert loaded["none"].shape == (0, 4)
    metadata = HuggingFaceStorageReader(str(tmp_path)).read_metadata()
    assert metadata.state_dict_metadata["weight"].size == torch.Size([2000, 3000])


@pytest.mark.parametrize("length", [0, 7, 8, 100])
def test_a_torn_header_is_damage(length: int) -> None:
    _, content = _written()
    with pytest.raises(CheckpointError, match="f is damaged: its header is torn"):
        StateFile.parse(content[:length], size=len(content), name="f")


def test_a_short_file_is_damage() -> None:
    layout, content = _written()
    with pytest.raises(CheckpointError, match="its header tells of"):
        StateFile.parse(content[: layout.header_bytes], size=len(content) - 1, name="f")


def test_a_type_that_is_not_read_is_no_damage() -> None:
    header = b'{"a":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}'
    content = len(header).to_bytes(8, "little") + header
    with pytest.raises(CheckpointError, match="f has tensors of type F8_E8M0, and hpctrain reads"):
        StateFile.parse(content, size=len(content) + 2, name="f")


def test_a_type_that_a_file_of_ours_cannot_have_is_damage() -> None:
    _, content = _written()
    with pytest.raises(CheckpointError, match="f is damaged: its header is torn"):
        StateFile.parse(content.replace(b'"F32"', b'"F33"'), size=len(content), name="f")


def test_an_index_is_read_back() -> None:
    layout = StateFile.plan(PIECES)
    index = StateIndex(
        files=(IndexedFile(name="a.safetensors", layout=layout),),
        shapes={"weight": (2000, 3000)},
        values={"optimizer.lr": 0.1},
        types={"weight": "float8_e8m0fnu"},
        trees={"optimizer": {"state": None}},
    )
    assert StateIndex.decode(index.encode(), name="state.json") == index
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        StateIndex.decode(index.encode()[:-1], name="state.json")


def test_an_index_of_an_older_version_tells_of_no_types() -> None:
    index = StateIndex(files=(), shapes={}, values={}, types={})
    content = index.encode().replace(b',"types":{}', b"")
    assert StateIndex.decode(content, name="state.json") == replace(index, types=None)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/b", "..", "", "a\0b", 3])
def test_an_index_names_files_of_its_directory_only(name: str) -> None:
    files = (IndexedFile(name=name, layout=StateFile.plan(PIECES)),)
    content = StateIndex(files=files, shapes={}, values={}).encode()
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        StateIndex.decode(content, name="state.json")


def test_files_that_are_made_when_they_are_asked_for_are_encoded_once_as_others_are() -> None:
    made = []

    def make(number: int) -> IndexedFile:
        made.append(number)
        return IndexedFile(name=f"f{number}", layout=StateFile.plan(PIECES[number:]))

    for count in (0, 1, 3):
        files = tuple(make(number) for number in range(count))
        planned = PlannedFiles(count, make)
        assert tuple(planned) == files
        assert planned[1:] == list(files[1:])
        made.clear()
        for values in ({"epoch": 1}, {"epoch": 2}):
            index = StateIndex(files=planned, shapes={"w": (3,)}, values=values)
            assert index.encode() == replace(index, files=files).encode()
            assert StateIndex.decode(index.encode(), name="") == replace(index, files=files)
        assert made == list(range(count))
