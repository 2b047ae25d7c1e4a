from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpctrain.rundir.merged_parts import MergedParts, merge_parts
from hpctrain.rundir.staging import StagedPart, seal, shared_directory, staging_directory


def stage(directory: Path, files: Mapping[str, bytes]) -> StagedPart:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    directory.mkdir(parents=True, exist_ok=True)
    return StagedPart(files=tuple(seal(directory)))


def own(checkpoints: Path, rank: int) -> Path:
    return staging_directory(checkpoints, attempt=1, report=7, rank=rank)


def merge(checkpoints: Path, parts: Mapping[int, StagedPart]) -> MergedParts:
    return merge_parts(checkpoints, parts, attempt=1, report=7)


def test_the_lowest_rank_with_a_file_keeps_its_directory_and_its_version(tmp_path: Path):
    parts = {
        0: stage(own(tmp_path, 0), {}),
        1: stage(own(tmp_path, 1), {"model": b"1", "a/b": b"same"}),
        2: stage(own(tmp_path, 2), {"model": b"2", "a/b": b"same", "c": b"only here"}),
    }
    merged = merge(tmp_path, parts)
    assert merged.directory == own(tmp_path, 1)
    assert [file.path for file in merged.files] == ["a/b", "c", "model"]
    assert (merged.directory / "model").read_bytes() == b"1"
    assert (merged.directory / "c").read_bytes() == b"only here"
    assert merged.conflicts == ("model",)
    assert merged.emptied == {own(tmp_path, 0), own(tmp_path, 2)}


def test_files_of_ranks_join_those_that_all_share(tmp_path: Path):
    shared = shared_directory(tmp_path, attempt=1, report=7)
    state = stage(shared, {"state": b"s"}).files
    mine = stage(own(tmp_path, 0), {"mine": b"m"}).files
    part = StagedPart(files=(*state, *mine), shared=frozenset({"state"}))
    merged = merge(tmp_path, {0: part})
    assert merged.directory == shared
    assert sorted(path.name for path in shared.iterdir()) == ["mine", "state"]
    assert merged.emptied == {own(tmp_path, 0)}


def test_once_published_nothing_stays_in_staging(tmp_path: Path):
    parts = {rank: stage(own(tmp_path, rank), {"a": b"%d" % rank}) for rank in range(3)}
    merged = merge(tmp_path, parts)
    merged.directory.rename(tmp_path / "000007")
    # Of ranks 1 and 2 the file of the same name is left.
    merged.remove_emptied()
    assert [path.name for path in tmp_path.iterdir()] == ["000007"]
