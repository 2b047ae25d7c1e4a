"""Where predictions go: what is refused, what is kept out, and who scores which part."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from dataclasses import replace

import pytest

from hpctrain import ConfigError
from hpctrain.predict.identity import Identity
from hpctrain.predict.output import Output
from hpctrain.predict.parts import MOST_PARTS, Claims, Partition


def test_two_runs_do_not_write_one_output(tmp_path, monkeypatch):
    monkeypatch.setattr("hpctrain.timeouts.PREDICTION_LOCK_S", 0.1)
    output = Output.at(tmp_path / "s.h5")
    with (
        output.hold(),
        pytest.raises(ConfigError, match="another run has been writing"),
        output.hold(),
    ):
        pass
    with output.hold():
        pass
    assert not output.parts.exists()


def test_the_lock_is_on_a_file_because_network_filesystems_do_not_lock_directories(tmp_path):
    output = Output.at(tmp_path / "s.h5")
    with output.hold(), open(output.parts / "_lock", "r+b") as file:
        assert stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not output.parts.exists()


@pytest.mark.parametrize("moves", [False, True])
def test_a_run_that_has_waited_keeps_others_out(moves, tmp_path, monkeypatch):
    output = Output.at(tmp_path / "s.parquet")
    entered, ending = threading.Event(), threading.Event()

    def second() -> None:
        with output.hold():
            entered.set()
            ending.wait(30)

    thread = threading.Thread(target=second)
    with output.hold():
        thread.start()
        assert not entered.wait(0.5)
        if moves:
            output.parts.rename(output.path)
    assert entered.wait(30)
    monkeypatch.setattr("hpctrain.timeouts.PREDICTION_LOCK_S", 0.1)
    with pytest.raises(ConfigError, match="another run has been writing"), output.hold():
        pass
    ending.set()
    thread.join(30)
    assert not output.parts.exists()
    assert [path.name for path in tmp_path.rglob("*")] == (["s.parquet"] if moves else [])


def test_a_run_waits_for_the_lock_of_one_that_has_just_died(tmp_path):
    output = Output.at(tmp_path / "s.h5")
    entered = threading.Event()

    def second() -> None:
        with output.hold():
            entered.set()

    thread = threading.Thread(target=second)
    with output.hold():
        thread.start()
        assert not entered.wait(0.5)
    assert entered.wait(10)
    thread.join(10)


def test_what_dead_ranks_have_left_is_removed_and_parts_are_not(tmp_path):
    output = Output.at(tmp_path / "s.h5")
    partition = Partition(num_rows=30, rows_per_part=10)
    same = Identity(whole="same", inputs="rows", model="weights", about="")
    with output.hold():
        assert output.begin(same, partition) == (partition, set())
        (output.parts / "part-000001.h5").touch()
        (output.parts / ".part-000002.h5.77").touch()
        (output.parts / ".claims-run-1").mkdir()
        output.mark_empty(0)
    # Another number of ranks would deal otherwise.
    other = Partition(num_rows=30, rows_per_part=5)
    assert output.begin(same, other) == (partition, {0, 1})
    assert sorted(p.name for p in output.parts.iterdir()) == [
        "_part-000000.empty",
        "_plan.json",
        "part-000001.h5",
    ]
    for changed, what in (
        ({"inputs": "other"}, "the input differs, or has changed"),
        ({"model": "other"}, "the checkpoint differs, or its files have changed"),
        ({}, "the predictor, columns or arguments differ"),
    ):
        with pytest.raises(ConfigError, match=f"parts of another prediction: .*{what}"):
            output.begin(replace(same, whole="another", **changed), partition)


@pytest.mark.parametrize("num_rows", [1, 4096, 100_000, 10**7, 10**9, 10**13])
@pytest.mark.parametrize("world_size", [1, 7, 1000])
def test_rows_are_dealt_into_whole_batches_for_all_ranks(num_rows, world_size):
    partition = Partition.make(num_rows, batch_size=1000, world_size=world_size)
    assert partition.rows_per_part % 1000 == 0
    assert partition.num_parts <= max(MOST_PARTS, world_size)
    assert partition.num_parts >= min(world_size, -(-num_rows // 1000)) / 2
    assert partition.rows(0).start == 0
    assert partition.rows(partition.num_parts - 1).stop == num_rows


def test_every_part_is_claimed_once_by_ranks_of_unlike_speed(tmp_path):
    todo = [part for part in range(60) if part % 7]
    ranks = [Claims(tmp_path, todo, rank=rank, world_size=3) for rank in range(3)]
    first, second, third = map(iter, ranks)
    # The third does not begin before the others have nothing left.
    begun = [next(first), next(second)]
    fast = list(first)
    rest = list(second)
    assert sorted([*begun, *fast, *rest]) == todo
    assert list(third) == []
    # In order first, then what is left of others.
    assert [*begun[:1], *fast][:17] == todo[:17]


def test_a_rank_alone_needs_no_claims(tmp_path):
    assert list(Claims(tmp_path, [3, 5], rank=0, world_size=1)) == [3, 5]
    assert list(tmp_path.iterdir()) == []
