"""Ranks that stage into one directory at a time, against what each of them wanted to save."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hpctrain.bulk.digest import digest_file
from hpctrain.bulk.direct import LARGE_BYTES
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import Bulk
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import (
    StagedPart,
    make_empty,
    seal,
    shared_directory,
    staging_directory,
)
from hpctrain.rundir.store import CheckpointStore

PATIENCE_S = 60.0
Tree = Mapping[str, bytes]
Stage = Callable[[int, Tree], StagedPart]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "checkpoints"
    directory.mkdir(parents=True)
    return directory


def places(checkpoints: Path, rank: int) -> tuple[Path, Path]:
    """Return the shared directory, and the rank's own."""
    return (
        shared_directory(checkpoints, attempt=1, report=1),
        staging_directory(checkpoints, attempt=1, report=1, rank=rank),
    )


def write(directory: Path, tree: Tree) -> Path:
    for path, content in tree.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def read(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != MANIFEST_NAME
    }


def stage_copies(checkpoints: Path, source: Path, rank: int) -> StagedPart:
    staging, bulk = SharedStaging(*places(checkpoints, rank)), Bulk()
    written = staging.copy(source, bulk)
    return StagedPart(files=staging.seal(bulk, written=written), shared=staging.shared)


def stage_links(checkpoints: Path, source: Path, rank: int) -> StagedPart:
    staging = SharedStaging(*places(checkpoints, rank))
    staging.link(source)
    return StagedPart(files=staging.seal(), shared=staging.shared)


def stage_own(checkpoints: Path, source: Path, rank: int) -> StagedPart:
    _, own = places(checkpoints, rank)
    make_empty(own)
    write(own, read(source))
    return StagedPart(files=tuple(seal(own)))


def seal_in_place(_: Path, source: Path, rank: int) -> StagedPart:
    return StagedPart(files=tuple(seal(source)))


WAYS = (stage_copies, stage_copies, stage_links, stage_own)


def draw_trees(chance: random.Random) -> dict[int, Tree]:
    """Return what each of some ranks saves: some names are those of others, too."""
    names = ["model.bin", "a/model.bin", "a/b/c", "with space", "ä", "large.bin"]
    trees: dict[int, Tree] = {}
    for rank in sorted(chance.sample(range(9), chance.randint(1, 5))):
        mine = [*chance.sample(names, chance.randint(0, 3)), f"rank-{rank}", f"d/rank-{rank}"]
        sizes = {"large.bin": LARGE_BYTES + chance.randint(0, 9)}
        trees[rank] = {
            name: chance.randbytes(sizes.get(name, chance.randint(0, 40))) for name in mine
        }
    return trees


@pytest.mark.parametrize("seed", range(60))
def test_a_checkpoint_has_all_files_and_of_one_name_the_lowest_ranks(
    checkpoints: Path, tmp_path: Path, seed: int
):
    chance = random.Random(seed)
    trees = draw_trees(chance)
    ways = {rank: chance.choice(WAYS) for rank in trees}
    parts: dict[int, StagedPart] = {}
    begin = threading.Barrier(len(trees))

    def stage(rank: int) -> None:
        source = write(tmp_path / f"of-{rank}", trees[rank])
        begin.wait(PATIENCE_S)
        part = ways[rank](checkpoints, source, rank)
        parts[rank] = StagedPart.from_bytes(part.to_bytes())

    ranks = [threading.Thread(target=stage, args=(rank,)) for rank in trees]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(PATIENCE_S)
    store = CheckpointStore(checkpoints)
    checkpoint, conflicts = store.commit(attempt=1, report=1, world_size=9, metrics={}, parts=parts)
    expected: dict[str, bytes] = {}
    for rank in sorted(trees, reverse=True):
        expected |= trees[rank]
    assert read(checkpoint.path) == expected
    store.verify(store.manifests()[0])
    differing = {p for tree in trees.values() for p, c in tree.items() if c != expected[p]}
    assert set(conflicts) == differing
    assert [path.name for path in checkpoints.iterdir()] == ["000001"]


@pytest.mark.parametrize("size", [3, LARGE_BYTES + 3])
def test_a_copy_never_touches_a_file_that_another_rank_has_begun(
    checkpoints: Path, tmp_path: Path, size: int
):
    shared, own = places(checkpoints, 2)
    write(shared, {"model.bin": b"half of ano"})
    source = write(tmp_path / "source", {"model.bin": b"m" * size, "mine": b"x"})
    part = stage_copies(checkpoints, source, 2)
    assert (shared / "model.bin").read_bytes() == b"half of ano"
    assert digest_file(own / "model.bin") == digest_file(source / "model.bin")
    assert part.shared == {"mine"}


def test_what_a_rank_could_not_finish_is_deleted_with_the_rest(checkpoints: Path, tmp_path: Path):
    class Failing(Bulk):
        def copy(self, source: Path, target: Path) -> None:
            super().copy(source, target)
            raise OSError(5, "Input/output error")

    source = write(tmp_path / "source", {"model.bin": b"m"})
    with pytest.raises(OSError, match="Input/output error"):
        SharedStaging(*places(checkpoints, 0)).copy(source, Failing())
    CheckpointStore(checkpoints).abandon(attempt=1, report=1)
    assert list(checkpoints.iterdir()) == []


def test_a_run_that_was_removed_does_not_come_back(checkpoints: Path, tmp_path: Path):
    source = write(tmp_path / "source", {"a/b/model.bin": b"m"})
    checkpoints.rmdir()
    with pytest.raises(FileNotFoundError):
        stage_copies(checkpoints, source, 0)
    assert not checkpoints.exists()


def test_a_folder_without_files_is_copied(checkpoints: Path, tmp_path: Path):
    source = write(tmp_path / "source", {"model.bin": b"m"})
    (source / "plots").mkdir()
    stage_copies(checkpoints, source, 0)
    assert (places(checkpoints, 0)[0] / "plots").is_dir()


def test_what_all_ranks_have_is_written_once(checkpoints: Path, tmp_path: Path):
    staged = []
    for rank in range(3):
        source = write(tmp_path / f"of-{rank}", {f"rank-{rank}": b"x"})
        staging = SharedStaging(*places(checkpoints, rank))
        written = staging.copy(source)
        staging.offer("preprocessor.json", b"{}")
        staged.append([file.path for file in staging.seal(written=written)])
    assert staged == [["preprocessor.json", "rank-0"], ["rank-1"], ["rank-2"]]


@pytest.mark.parametrize("is_relative", [True, False])
def test_what_a_link_leads_to_is_linked_and_not_the_link(
    checkpoints: Path, tmp_path: Path, is_relative: bool
):
    """As the cache of Hugging Face is laid out."""
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blob").write_bytes(b"weights")
    target = "../blob" if is_relative else tmp_path / "blob"
    (tmp_path / "snapshot/model.bin").symlink_to(target)
    part = stage_links(checkpoints, tmp_path / "snapshot", 0)
    staged = places(checkpoints, 0)[0] / "model.bin"
    assert [file.path for file in part.files] == ["model.bin"]
    assert not staged.is_symlink()
    assert staged.read_bytes() == b"weights"


@pytest.mark.parametrize("stage", [stage_copies, stage_links, seal_in_place])
@pytest.mark.parametrize("what", ["a FIFO", "a link to nothing"])
def test_what_is_no_file_is_refused_by_name(
    checkpoints: Path, tmp_path: Path, stage: Callable[..., StagedPart], what: str
):
    source = write(tmp_path / "source", {"model.bin": b"m", "sub/more": b"x"})
    if what == "a FIFO":
        os.mkfifo(source / "sub/odd")
    else:
        (source / "sub/odd").symlink_to("nothing")
    with pytest.raises(
        CheckpointError, match=f"{source}/sub/odd is (not a file|a link to nothing)"
    ):
        stage(checkpoints, source, 0)
