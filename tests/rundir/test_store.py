from __future__ import annotations

import builtins
import errno
import io
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME, VALIDATION_NAME
from hpctrain.config import CheckpointConfig
from hpctrain.errors import CheckpointError
from hpctrain.rundir import manifest as manifest_module
from hpctrain.rundir import store as store_module
from hpctrain.rundir import verify
from hpctrain.rundir.manifest import Manifest
from hpctrain.rundir.reading import read_content
from hpctrain.rundir.retention import rank_checkpoints
from hpctrain.rundir.staging import StagedPart, check_name, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore

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
    name: str | None = None,
    versions: Mapping[str, str] | None = None,
    validation: Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, list[str]]:
    """Stage parts as ranks do, and commit them."""
    staged = {}
    for rank, files in (parts or {0: {"model.bin": b"%d" % report}}).items():
        part = staging_directory(directory, attempt=attempt, report=report, rank=rank)
        part.mkdir(parents=True)
        for path, content in files.items():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_bytes(content)
        staged[rank] = StagedPart(files=tuple(seal(part)), name=name, versions=versions or {})
    return CheckpointStore(directory).commit(
        attempt=attempt,
        report=report,
        world_size=4,
        metrics=metrics or {},
        parts=staged,
        validation=validation,
    )


def test_ranks_may_have_nothing_to_save_but_not_all_of_them(tmp_path: Path):
    checkpoint, conflicts = commit(tmp_path, 1, {0: {}, 1: {"a/b": b"1"}, 2: {}, 3: {"c": b"3"}})
    assert content(checkpoint) == {"a/b": b"1", "c": b"3"}
    assert conflicts == []
    assert names(tmp_path) == ["000001"]
    with pytest.raises(CheckpointError, match=r"holds no file\. Save into it before report"):
        commit(tmp_path, 2, {0: {}, 1: {}})


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


def test_what_ranks_staged_is_gone_after_the_commit_and_is_listed_only_if_something_is_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    listed: list[Path] = []
    rmtree = shutil.rmtree

    def remove(path: Path, ignore_errors: bool = False) -> None:
        listed.append(path)
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", remove)
    commit(directory, 1, {rank: {f"rank-{rank}": b"x"} for rank in range(4)})
    assert (names(directory), listed) == (["000001"], [])
    commit(directory, 2, {0: {"a": b"x"}, 1: {"a": b"x", "b": b"y"}, 2: {"in/it": b"z"}})
    assert names(directory) == ["000001", "000002"]
    assert [path.name for path in listed] == [".tmp-1-000002"]


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


def test_checkpoints_are_listed_by_report_and_only_if_they_are_complete(
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


def test_of_many_checkpoints_the_files_of_the_newest_alone_are_kept_in_memory(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    for report in (1, 2, 3):
        commit(directory, report)
    read: list[str] = []
    read_manifest = manifest_module.read_manifest

    def watched(path: Path) -> Manifest:
        read.append(path.name)
        return read_manifest(path)

    monkeypatch.setattr(store_module, "read_manifest", watched)
    newest, _ = store.newest_good()
    assert newest is not None
    assert [file.path for file in newest.files] == ["model.bin"]
    assert read == ["000003"]
    assert [manifest.files for manifest in store.known_manifests()] == [(), (), ()]


@pytest.mark.parametrize(("interval_s", "looks"), [(math.inf, 1), (0.0, 9)])
def test_between_files_a_stop_is_looked_for_once_an_interval(
    directory: Path,
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    interval_s: float,
    looks: int,
):
    """Each look reads the run directory, and a checkpoint may have thousands of small files."""
    commit(directory, 1, {0: {f"{number}.bin": b"x" for number in range(9)}})
    monkeypatch.setattr(verify, "_LOOK_INTERVAL_S", interval_s)
    looked: list[None] = []
    store.newest_good(check_stop=lambda: looked.append(None))
    assert len(looked) == looks


def test_a_run_that_is_to_stop_waits_for_one_file_of_a_checkpoint_and_sets_none_aside(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verify, "_LOOK_INTERVAL_S", 0.0)
    commit(directory, 1, {0: {"a": b"a", "b": b"b", "c": b"c"}})
    looks = iter([None, ValueError("it is to stop")])

    def check_stop() -> None:
        if (error := next(looks)) is not None:
            raise error

    with pytest.raises(ValueError, match="it is to stop"):
        store.newest_good(check_stop=check_stop)
    assert len(store.manifests()) == 1


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def alter(path: Path) -> None:
    path.write_text(path.read_text().replace('"report": 2', '"report": 9'))


@pytest.mark.parametrize(
    ("damage", "why"),
    [(tear, "is torn"), (alter, "was altered"), (Path.unlink, "is missing")],
)
def test_a_checkpoint_with_a_damaged_manifest_is_named_and_set_aside(
    directory: Path, store: CheckpointStore, damage: Any, why: str
):
    commit(directory, 1)
    checkpoint, _ = commit(directory, 2)
    damage(checkpoint.path / MANIFEST_NAME)
    manifest, (told,) = store.newest_good()
    assert manifest is not None
    assert manifest.report == 1
    assert told.startswith(f"checkpoint 000002: its manifest {why}")
    assert names(directory) == ["000001", "000002.damaged"]


def test_a_file_that_cannot_be_read_is_damage(directory: Path, store: CheckpointStore):
    commit(directory, 1)
    checkpoint, _ = commit(directory, 2)
    (checkpoint.path / "model.bin").unlink()
    (checkpoint.path / "model.bin").mkdir()
    manifest, (told,) = store.newest_good()
    assert manifest is not None
    assert manifest.report == 1
    assert "cannot be read: Is a directory" in told


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOTCONN])
@pytest.mark.parametrize("unreadable", ["model.bin", MANIFEST_NAME])
def test_what_cannot_be_read_just_now_is_not_set_aside_and_nothing_else_is_begun_with(
    directory: Path,
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    unreadable: str,
    number: int,
):
    commit(directory, 1)
    commit(directory, 2)
    torn, _ = commit(directory, 3)
    damage_by_truncation(torn.path / "model.bin")
    (commit(directory, 4)[0].path / MANIFEST_NAME).unlink()
    read = io.open

    def away(file: Any, *args: Any, **options: Any) -> Any:
        path = Path(str(file))
        if path.name == unreadable and path.parent.name in ("000001", "000002"):
            raise OSError(number, os.strerror(number), str(path))
        return read(file, *args, **options)

    with monkeypatch.context() as outage:
        outage.setattr(io, "open", away)
        outage.setattr(builtins, "open", away)
        with pytest.raises(UnreadableError) as raised:
            store.newest_good()
    message = str(raised.value)
    if unreadable == "model.bin":
        assert message.startswith("checkpoint 000002: ")
    assert f"{unreadable} cannot be read: {os.strerror(number)}." in message
    assert "nothing was changed: try again" in message
    assert names(directory) == ["000001", "000002", "000003", "000004"]
    manifest, complaints = store.newest_good()
    assert manifest is not None
    assert (manifest.report, len(complaints)) == (2, 2)
    assert names(directory) == ["000001", "000002", "000003.damaged", "000004.damaged"]


def test_a_disk_that_fails_is_damage(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    commit(directory, 1)
    read = io.open

    def failing(file: Any, *args: Any, **options: Any) -> Any:
        path = Path(str(file))
        if path.name == "model.bin":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(file, *args, **options)

    monkeypatch.setattr(builtins, "open", failing)
    manifest, (told,) = store.newest_good()
    assert manifest is None
    assert "cannot be read: Input/output error" in told
    assert names(directory) == ["000001.damaged"]


def test_a_manifest_that_was_read_and_cannot_be_read_again_is_damage(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    commit(directory, 1)
    checkpoint, _ = commit(directory, 2)
    assert len(store.known_manifests()) == 2
    read = io.open

    def failing(file: Any, *args: Any, **options: Any) -> Any:
        if Path(str(file)) == checkpoint.path / MANIFEST_NAME:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        return read(file, *args, **options)

    monkeypatch.setattr(io, "open", failing)
    monkeypatch.setattr(builtins, "open", failing)
    manifest, (told,) = store.newest_good()
    assert manifest is not None
    assert manifest.report == 1
    assert told.startswith("checkpoint 000002: its manifest cannot be read: Input/output error")
    assert names(directory) == ["000001", "000002.damaged"]


def test_the_manifest_says_what_the_checkpoint_was_made_with(
    directory: Path, store: CheckpointStore
):
    commit(directory, 1, versions={"hpctrain": "0.1", "torch": "2.9"})
    assert store.manifests()[0].versions == {"hpctrain": "0.1", "torch": "2.9"}


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
    store.prepare()
    assert names(directory) == ["000001", "000009.damaged"]


def test_what_is_to_be_deleted_is_renamed_at_once_and_given_to_who_deletes(directory: Path):
    commit(directory, 1)
    commit(directory, 2)
    staging_directory(directory, attempt=1, report=3, rank=0).mkdir(parents=True)
    (directory / ".trash-000000-1").mkdir()
    given: list[Path] = []
    store = CheckpointStore(directory, delete=given.append)
    store.prepare()
    store.retain(CheckpointConfig(num_to_keep=1))
    assert [path.name for path in given if path.name == ".trash-000000-1"]
    assert len(given) == 3
    assert sorted(entry.name for entry in directory.iterdir() if entry not in given) == ["000002"]


def test_what_a_dead_attempt_left_is_removed_from_a_disk_without_room_for_another_name(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    staging_directory(directory, attempt=1, report=2, rank=0).mkdir(parents=True)

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    store.prepare()
    assert not list(directory.iterdir())


def test_removing_the_unfinished_makes_the_directory_of_a_new_run(
    directory: Path, store: CheckpointStore
):
    store.prepare()
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


def test_what_is_kept_is_found_without_reading_each_manifest_again(
    directory: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []

    def read_and_note(path: Path, **options: Any) -> bytes:
        content = read_content(path, **options)
        read.append(path.parent.name)
        return content

    monkeypatch.setattr("hpctrain.rundir.manifest.read_content", read_and_note)
    for report in range(1, 4):
        commit(directory, report)
    read.clear()
    store.retain(CheckpointConfig(num_to_keep=3))
    commit(directory, 4)
    store.retain(CheckpointConfig(num_to_keep=3))
    assert sorted(read) == ["000001", "000002", "000003", "000004"]


def test_a_checkpoint_that_was_made_anew_is_ranked_by_its_own_score(
    directory: Path, store: CheckpointStore
):
    config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc")
    for report, acc in enumerate((0.5, 0.7, 0.6), 1):
        commit(directory, report, metrics={"acc": acc})
        store.retain(config)
    assert names(directory) == ["000002", "000003"]
    commit(directory, 2, metrics={"acc": 0.1})
    commit(directory, 4, metrics={"acc": 0.2})
    store.retain(config)
    assert names(directory) == ["000003", "000004"]


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


def test_checkpoints_with_names_are_ordered_by_their_reports(
    directory: Path, store: CheckpointStore
):
    for report, name in enumerate(["zebra", "best", None, "anchor"], start=1):
        commit(directory, report, name=name)
    assert [m.name for m in store.manifests()] == ["zebra", "best", "000003", "anchor"]
    newest, _ = store.newest_good()
    assert newest is not None
    assert newest.name == "anchor"
    store.retain(CheckpointConfig(num_to_keep=1))
    assert names(directory) == ["anchor"]


def test_the_name_of_another_reports_checkpoint_is_refused(directory: Path, store: CheckpointStore):
    commit(directory, 1, name="best")
    with pytest.raises(CheckpointError, match="best belongs to the checkpoint of report 1"):
        commit(directory, 2, name="best")
    assert [m.report for m in store.manifests()] == [1]


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "..", "x.damaged", "x.replaced", "000014", "a b", "x" * 129]
)
def test_names_that_escape_hide_or_stand_for_others_are_refused(name: str):
    assert check_name(name, report=13) is not None


@pytest.mark.parametrize("name", ["best", "epoch=3-step=100", "000013", "v1.2"])
def test_other_names_are_names(name: str):
    assert check_name(name, report=13) is None


def test_one_of_each_interval_is_kept_beside_the_newest(directory: Path, store: CheckpointStore):
    config = CheckpointConfig(num_to_keep=2, keep_every_s=60)
    with patched_clock() as clock:
        for report, clock.now in enumerate([0, 20, 59, 61, 100, 119, 130, 140], start=1):
            commit(directory, report)
            store.retain(config)
    # At 0, then the first from 60 s after it (61), then from 121 (130).
    assert names(directory) == ["000001", "000004", "000007", "000008"]


def test_an_interval_alone_thins_out_and_keeps_the_newest(directory: Path, store: CheckpointStore):
    with patched_clock() as clock:
        for report, clock.now in enumerate([0, 20, 61, 80], start=1):
            commit(directory, report)
            store.retain(CheckpointConfig(keep_every_s=60))
    assert names(directory) == ["000001", "000003", "000004"]


def test_a_checkpoint_of_a_clock_that_was_ahead_suspends_no_interval(
    directory: Path, store: CheckpointStore
):
    config = CheckpointConfig(num_to_keep=1, keep_every_s=60)
    with patched_clock() as clock:
        for report, clock.now in enumerate([86_400, 100, 130, 170, 200, 240], start=1):
            commit(directory, report)
            store.retain(config)
    # Of that clock, then at 100, then the first from 60 s after each.
    assert names(directory) == ["000001", "000002", "000004", "000006"]


class Clock:
    now: float = 0.0


@contextmanager
def patched_clock() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: clock.now)
        yield clock


READER = """
import sys
from hpctrain import Checkpoint
with Checkpoint(sys.argv[1]).as_directory() as directory:
    print("reading", flush=True)
    sys.stdin.read()
    print(open(directory + "/model.bin").read(), flush=True)
"""


@contextmanager
def reader_of(checkpoint: Checkpoint) -> Iterator[subprocess.Popen[str]]:
    """A process that reads a checkpoint until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(checkpoint.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        yield process
        process.kill()


def test_what_another_process_reads_is_deleted_when_it_is_read_no_more(
    directory: Path, store: CheckpointStore
):
    checkpoint, _ = commit(directory, 1)
    commit(directory, 2)
    with reader_of(checkpoint) as process:
        store.retain(CheckpointConfig(num_to_keep=1))
        assert names(directory) == ["000001", "000002"]
        out, _ = process.communicate("")
        assert out == "1\n"
    store.retain(CheckpointConfig(num_to_keep=1))
    assert names(directory) == ["000002"]


def test_what_another_process_reads_may_be_replaced_again_and_again(
    directory: Path, store: CheckpointStore
):
    checkpoint, _ = commit(directory, 1)
    with reader_of(checkpoint):
        for attempt in (2, 3, 4):
            commit(directory, 1, attempt=attempt)
            store.prepare()
        assert [manifest.attempt for manifest in store.manifests()] == [4]
        assert len(list(directory.iterdir())) == 2, "the newest, and what is read"
    store.prepare()
    assert names(directory) == ["000001"]


def test_a_reader_that_was_killed_holds_nothing(directory: Path, store: CheckpointStore):
    checkpoint, _ = commit(directory, 1)
    commit(directory, 2)
    with reader_of(checkpoint) as process:
        process.kill()
    store.retain(CheckpointConfig(num_to_keep=1))
    assert names(directory) == ["000002"]


def test_who_comes_too_late_to_read_is_told_why(directory: Path, store: CheckpointStore):
    checkpoint, _ = commit(directory, 1)
    commit(directory, 2)
    store.retain(CheckpointConfig(num_to_keep=1))
    with pytest.raises(CheckpointError, match=r"was deleted: its run keeps others"):
        checkpoint.to_directory()


def test_a_predecessor_whose_successor_never_came_is_found_under_its_name(
    directory: Path, store: CheckpointStore
):
    checkpoint, _ = commit(directory, 3)
    checkpoint.path.rename(directory / "000003.replaced")
    assert [m.report for m in store.manifests()] == [3]
    store.prepare()
    assert names(directory) == ["000003"]
    assert store.newest_good()[0] is not None


def killed_at(call: int, action: Callable[[], Any]) -> bool:
    """Run `action` in a child that dies before its n-th durable step; return whether it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    steps = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return step

    try:
        for name in ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "write"):
            setattr(os, name, counted(getattr(os, name)))
        action()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("same_report", [False, True])
def test_a_kill_at_any_step_of_a_commit_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, same_report: bool
):
    parts = {0: {"a": b"a", "deep/b": b"b"}, 1: {"c": b"c"}}
    ends = set()
    for call in itertools.count(1):
        directory = tmp_path / str(call)
        commit(directory, 1)
        report = 1 if same_report else 2

        def action(directory: Path = directory, report: int = report) -> None:
            commit(directory, report, parts, attempt=2)
            CheckpointStore(directory).retain(CheckpointConfig(num_to_keep=1))

        killed = killed_at(call, action)
        store = CheckpointStore(directory)
        seen = store.manifests()[-1]
        store.verify(seen)
        store.prepare()
        good, complaints = store.newest_good()
        assert good is not None
        assert good.attempt == seen.attempt
        assert complaints == []
        assert all(name.startswith("0000") for name in names(directory))
        ends.add(good.attempt)
        if not killed:
            break
    assert call > 15
    assert good.attempt == 2
    assert ends == {1, 2}


TASK = {"fn_kwargs": {"folds": 3}, "timeout_s": None}


def test_a_validation_is_pending_until_its_end_is_written(directory: Path, store: CheckpointStore):
    checkpoint, _ = commit(directory, 1, metrics={"loss": 2.0, "acc": 0.0}, validation=TASK)
    manifest_before = (checkpoint.path / MANIFEST_NAME).read_bytes()
    (pending,) = store.manifests()
    assert pending.validation == TASK
    assert store.end_validation(pending, {"acc": 0.9})
    (ended,) = store.manifests()
    assert ended.validation is None
    assert ended.metrics == {"loss": 2.0, "acc": 0.9}
    # Who reads the checkpoint holds a lock on it.
    assert (checkpoint.path / MANIFEST_NAME).read_bytes() == manifest_before
    assert not store.end_validation(pending, {"acc": 0.1})
    store.verify(ended)


def test_a_validation_of_a_checkpoint_that_was_made_anew_or_deleted_is_not_taken(
    directory: Path, store: CheckpointStore
):
    commit(directory, 1, validation=TASK)
    (first,) = store.manifests()
    checkpoint, _ = commit(directory, 1, validation=TASK, attempt=2)
    assert not store.end_validation(first, {"acc": 0.9})
    (second,) = store.manifests()
    assert second.validation == TASK
    shutil.rmtree(checkpoint.path)
    assert not store.end_validation(second, {"acc": 0.9})


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content.replace(b"0.9", b"0.8"),
        lambda content: b"[]",
        # Copied from another checkpoint into this one.
        lambda content: content.replace(b'"created_at": 1', b'"created_at": 2'),
    ],
)
def test_a_validation_whose_end_is_damaged_is_made_again(
    directory: Path, store: CheckpointStore, damage: Callable[[bytes], bytes]
):
    checkpoint, _ = commit(directory, 1, metrics={"acc": 0.0}, validation=TASK)
    (pending,) = store.manifests()
    assert store.end_validation(pending, {"acc": 0.9})
    path = checkpoint.path / VALIDATION_NAME
    path.write_bytes(damage(path.read_bytes()))
    (again,) = store.manifests()
    assert (again.validation, again.metrics) == (TASK, {"acc": 0.0})


def test_what_is_pending_is_kept_and_displaces_no_other(directory: Path, store: CheckpointStore):
    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="acc")
    commit(directory, 1, metrics={"acc": 0.5})
    # By what was reported it would be the best.
    commit(directory, 2, metrics={"acc": 0.9}, validation=TASK)
    commit(directory, 3, metrics={"acc": 0.1})
    store.retain(config)
    assert names(directory) == ["000001", "000002", "000003"]
    (pending,) = [m for m in store.manifests() if m.validation is not None]
    store.end_validation(pending, {"acc": 0.2})
    store.retain(config)
    assert names(directory) == ["000001", "000003"]


def test_a_copy_of_a_checkpoint_has_nothing_of_its_run(directory: Path, store: CheckpointStore):
    checkpoint, _ = commit(directory, 1, validation=TASK)
    store.end_validation(*store.manifests(), {"acc": 0.9})
    copied = Path(checkpoint.to_directory(directory.parent / "copy"))
    assert names(copied) == ["model.bin"]
    assert names(Path(Checkpoint.from_bytes(checkpoint.to_bytes()).path)) == ["model.bin"]
