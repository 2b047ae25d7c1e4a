from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint import MANIFEST_NAME, Checkpoint
from hpctrain.config import CheckpointConfig
from hpctrain.errors import CheckpointError
from hpctrain.rundir.staging import seal, staging_directory
from hpctrain.rundir.store import CheckpointStore, rank_checkpoints

Files = Mapping[str, bytes]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory)


def commit(
    directory: Path,
    report: int,
    parts: Mapping[int, Files] | None = None,
    *,
    attempt: int = 1,
    metrics: Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, list[str]]:
    """Stage parts as ranks do, and commit them."""
    staged = {}
    for rank, files in (parts or {0: {"model.bin": b"%d" % report}}).items():
        part = staging_directory(directory, attempt=attempt, report=report, rank=rank)
        for name, content in files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).write_bytes(content)
        staged[rank] = seal(part)
    return CheckpointStore(directory).commit(
        attempt=attempt, report=report, world_size=4, metrics=metrics or {}, parts=staged
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def content(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {
        str(path.relative_to(checkpoint.path)): path.read_bytes()
        for path in checkpoint.path.rglob("*")
        if path.is_file() and path.name != MANIFEST_NAME
    }


def test_the_parts_of_several_ranks_become_one_checkpoint(directory: Path, store: CheckpointStore):
    checkpoint, conflicts = commit(
        directory,
        13,
        {
            3: {"rank-3.bin": b"three", "shared.bin": b"same", "deep/er/x": b"x"},
            1: {"rank-1.bin": b"one", "shared.bin": b"same"},
        },
        metrics={"loss": 0.5},
    )
    assert checkpoint.path == directory / "000013"
    assert conflicts == []
    assert content(checkpoint) == {
        "rank-1.bin": b"one",
        "rank-3.bin": b"three",
        "shared.bin": b"same",
        "deep/er/x": b"x",
    }
    (manifest,) = store.manifests()
    assert (manifest.report, manifest.attempt, manifest.world_size) == (13, 1, 4)
    assert manifest.metrics == {"loss": 0.5}
    assert [file.path for file in manifest.files] == sorted(content(checkpoint))
    store.verify(manifest)
    assert names(directory) == ["000013"]


def test_of_files_with_one_name_the_lowest_ranks_is_kept_and_a_difference_is_told(
    directory: Path, store: CheckpointStore
):
    checkpoint, conflicts = commit(
        directory, 1, {2: {"a": b"of 2", "b": b"same"}, 1: {"a": b"of 1", "b": b"same"}}
    )
    assert conflicts == ["a"]
    assert content(checkpoint) == {"a": b"of 1", "b": b"same"}
    store.verify(store.manifests()[0])


def test_a_file_where_another_rank_has_a_directory_is_a_failed_commit(directory: Path):
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        commit(directory, 1, {0: {"a": b""}, 1: {"a/b": b""}})
    assert CheckpointStore(directory).manifests() == []


def test_a_commit_of_a_number_that_is_there_replaces_it(directory: Path, store: CheckpointStore):
    commit(directory, 3)
    checkpoint, _ = commit(directory, 3, {0: {"other.bin": b"second"}}, attempt=2)
    assert content(checkpoint) == {"other.bin": b"second"}
    assert [manifest.attempt for manifest in store.manifests()] == [2]
    assert names(directory) == ["000003"]


def test_checkpoints_are_listed_by_number_and_only_if_they_are_complete(
    directory: Path, store: CheckpointStore
):
    assert store.manifests() == []
    for report in (1000000, 2, 10):
        commit(directory, report)
    (directory / "000005").mkdir()
    (directory / "000006").mkdir()
    (directory / "000006" / MANIFEST_NAME).write_text('{"format": 1, "na')
    (directory / "notes.txt").write_text("of the user")
    assert [manifest.report for manifest in store.manifests()] == [2, 10, 1000000]


def test_a_checkpoint_of_a_newer_format_is_refused_and_not_overlooked(
    directory: Path, store: CheckpointStore
):
    checkpoint, _ = commit(directory, 1)
    path = checkpoint.path / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": 99}))
    with pytest.raises(CheckpointError, match=r"has format 99, .*Use a newer hpctrain"):
        store.manifests()


def damage_by_truncation(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_by_a_flipped_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damage_by_truncation, "has 6 bytes and digest .* but 7 bytes and digest .* committed"),
        (damage_by_a_flipped_bit, "has 7 bytes and digest"),
        (Path.unlink, r"checkpoint 000002 has lost .*model\.bin"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_the_newest(
    directory: Path, store: CheckpointStore, damage: Any, complaint: str
):
    commit(directory, 1)
    checkpoint, _ = commit(directory, 2, {0: {"model.bin": b"weights"}})
    damage(checkpoint.path / "model.bin")
    manifest, (told,) = store.newest_good()
    assert manifest is not None
    assert manifest.report == 1
    with pytest.raises(CheckpointError, match=complaint):
        raise CheckpointError(told)
    assert names(directory) == ["000001", "000002.damaged"]
    assert store.newest_good() == (manifest, [])


def test_a_second_damaged_checkpoint_of_a_number_replaces_the_first(
    directory: Path, store: CheckpointStore
):
    for attempt in (1, 2):
        checkpoint, _ = commit(directory, 2, attempt=attempt)
        damage_by_truncation(checkpoint.path / "model.bin")
        manifest, complaints = store.newest_good()
        assert manifest is None
        assert len(complaints) == 1
    assert names(directory) == ["000002.damaged"]


def test_without_any_checkpoint_there_is_no_newest(store: CheckpointStore):
    assert store.newest_good() == (None, [])


def test_what_a_dead_attempt_left_half_done_is_removed(directory: Path, store: CheckpointStore):
    commit(directory, 1)
    part = staging_directory(directory, attempt=1, report=2, rank=0)
    part.mkdir(parents=True)
    (part / "model.bin").write_bytes(b"half")
    (directory / ".trash-000000-1").mkdir()
    (directory / "000009.damaged").mkdir()
    store.remove_unfinished()
    assert names(directory) == ["000001", "000009.damaged"]


def test_removing_the_unfinished_makes_the_directory_of_a_new_run(
    directory: Path, store: CheckpointStore
):
    store.remove_unfinished()
    assert directory.is_dir()


def test_all_checkpoints_are_kept_unless_a_number_is_asked_for(
    directory: Path, store: CheckpointStore
):
    for report in range(1, 6):
        commit(directory, report)
    store.retain(CheckpointConfig())
    assert len(store.manifests()) == 5


def test_the_newest_are_kept(directory: Path, store: CheckpointStore):
    for report in range(1, 6):
        commit(directory, report)
        store.retain(CheckpointConfig(num_to_keep=2))
    assert names(directory) == ["000004", "000005"]


@pytest.mark.parametrize(
    ("order", "kept"), [("max", ["000002", "000005"]), ("min", ["000001", "000005"])]
)
def test_the_best_is_kept_and_the_newest_is_never_deleted(
    directory: Path, store: CheckpointStore, order: Any, kept: list[str]
):
    config = CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="score", checkpoint_score_order=order
    )
    for report, score in enumerate([0.1, 0.9, 0.5, 0.4, 0.3], start=1):
        commit(directory, report, metrics={"score": score})
        store.retain(config)
    assert names(directory) == kept


def test_what_is_protected_stays_whatever_its_score(directory: Path, store: CheckpointStore):
    for report in range(1, 5):
        commit(directory, report)
    store.retain(CheckpointConfig(num_to_keep=1), protected=["000002"])
    assert names(directory) == ["000002", "000004"]


def test_nan_and_missing_scores_are_the_worst_in_either_order(
    directory: Path, store: CheckpointStore
):
    scores: list[Mapping[str, Any]] = [
        {"val": {"score": 0.2}},
        {"val": {"score": math.nan}},
        {"val": 1.0},
        {},
        {"val": {"score": "high"}},
        {"val": {"score": 0.7}},
    ]
    for report, metrics in enumerate(scores, start=1):
        commit(directory, report, metrics=metrics)
    for order, best in (("max", [6, 1]), ("min", [1, 6])):
        config = CheckpointConfig(
            checkpoint_score_attribute="val/score", checkpoint_score_order=order
        )
        ranked = [manifest.report for manifest in rank_checkpoints(store.manifests(), config)]
        assert ranked == [*best, 5, 4, 3, 2]


def test_of_equal_scores_the_newer_is_better(directory: Path, store: CheckpointStore):
    for report in (1, 2, 3):
        commit(directory, report, metrics={"score": 1.0})
    config = CheckpointConfig(checkpoint_score_attribute="score")
    assert [m.report for m in rank_checkpoints(store.manifests(), config)] == [3, 2, 1]


def test_an_opened_manifest_is_a_checkpoint(directory: Path, store: CheckpointStore):
    checkpoint, _ = commit(directory, 7)
    assert store.open(store.manifests()[0]) == checkpoint
