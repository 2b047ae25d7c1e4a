from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import SyncConfig
from hpctrain.errors import CheckpointError
from hpctrain.worker.writing import Writing
from tests import runs

PATIENCE_S = 10.0


def test_without_a_limit_nobody_is_asked():
    def ask(number: int, wanted: bool) -> None:
        raise AssertionError("asked")

    writing = Writing(rank=0, timeout_s=PATIENCE_S, ask=ask)
    with writing.slot():
        pass


def test_a_turn_is_asked_for_and_given_back_also_after_an_error():
    said: list[tuple[int, bool]] = []

    def ask(number: int, wanted: bool) -> None:
        said.append((number, wanted))
        if wanted:
            writing.begin(number)

    writing = Writing(rank=0, timeout_s=PATIENCE_S, ask=ask)
    writing.limit(max_writers=1, max_bytes_per_s=None)
    with writing.slot():
        assert said == [(1, True)]
    with pytest.raises(OSError, match="full"), writing.slot():
        raise OSError("full")
    assert said == [(1, True), (1, False), (2, True), (2, False)]


def test_a_turn_that_does_not_come_is_an_error_and_one_that_comes_too_late_is_not_used():
    said: list[tuple[int, bool]] = []
    writing = Writing(rank=5, timeout_s=0.05, ask=lambda *slot: said.append(slot))
    writing.limit(max_writers=16, max_bytes_per_s=None)
    message = r"rank 5 waited 0 s for a slot to write: 16 others did.*sync_timeout=\.\.\.\) sets"
    for number in (1, 2):
        with pytest.raises(CheckpointError, match=message), writing.slot():
            raise AssertionError("wrote")
        writing.begin(1)
        assert said[-1] == (number, False)


def test_threads_of_a_rank_take_one_turn_after_the_other():
    wanted = threading.Event()

    def ask(number: int, want: bool) -> None:
        if want:
            open_turns.append(number)
            wanted.set()
        else:
            open_turns.remove(number)

    open_turns: list[int] = []
    writing = Writing(rank=0, timeout_s=PATIENCE_S, ask=ask)
    writing.limit(max_writers=1, max_bytes_per_s=None)
    most: list[int] = []

    def write() -> None:
        with writing.slot():
            most.append(len(open_turns))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in (1, 2, 3):
        assert wanted.wait(PATIENCE_S)
        wanted.clear()
        writing.begin(number)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1, 1, 1]


def test_what_a_rank_copies_keeps_to_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slept_s: list[float] = []
    # All asks come at once, so each waits for all before it.
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=slept_s.append)
    monkeypatch.setattr("hpctrain.bulk.pace.time", clock)
    writing = Writing(rank=0, timeout_s=PATIENCE_S, ask=lambda *_: None)
    writing.limit(max_writers=None, max_bytes_per_s=20e6)
    (tmp_path / "source").write_bytes(bytes(2_000_000))
    for number in range(3):
        writing.bulk.copy(tmp_path / "source", tmp_path / f"target-{number}")
    assert max(slept_s) >= 2 * 2e6 / 20e6


def _write_slowly() -> Callable[[dict[str, Any]], None]:
    """Take note of when each rank wrote."""

    def train(config: dict[str, Any]) -> None:
        import json
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        context = hpctrain.get_context()
        spans = []

        def write(checkpoint: Checkpoint, directory: str) -> Checkpoint:
            begin = time.monotonic()
            time.sleep(0.05)
            target = context.get_storage() / directory
            (target / f"{context.get_world_rank()}.bin").write_bytes(b"x")
            spans.append((begin, time.monotonic()))
            return Checkpoint(target)

        own = Path(config["own"]) / str(context.get_world_rank())
        own.mkdir(parents=True)
        for _ in range(2):
            hpctrain.report(
                {},
                Checkpoint(own),
                checkpoint_upload_mode=CheckpointUploadMode[config["mode"]],
                checkpoint_upload_fn=write,
            )
        hpctrain.get_all_reported_checkpoints()
        (own / "spans").write_text(json.dumps(spans))

    return train


def spans_of(directory: Path, *, mode: str, max_writers: int | None) -> list[tuple[float, float]]:
    result = runs.fit(
        _write_slowly(),
        directory,
        num_workers=3,
        train_loop_config={"mode": mode, "own": str(directory / "own")},
        sync_config=SyncConfig(max_writers=max_writers, sync_timeout=60),
    )
    assert result.checkpoint is not None
    assert len(list(result.checkpoint.path.glob("*.bin"))) == 3
    texts = [path.read_text() for path in sorted((directory / "own").glob("*/spans"))]
    return sorted((begin, end) for text in texts for begin, end in json.loads(text))


def most_at_a_time(spans: list[tuple[float, float]]) -> int:
    return max(sum(b <= begin < e for b, e in spans) for begin, _ in spans)


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_no_more_ranks_write_at_a_time_than_may(tmp_path: Path, mode: str):
    spans = spans_of(tmp_path, mode=mode, max_writers=1)
    assert len(spans) == 6
    assert most_at_a_time(spans) == 1


@pytest.mark.mpi
def test_without_a_limit_ranks_write_together(tmp_path: Path):
    assert most_at_a_time(spans_of(tmp_path, mode="SYNC", max_writers=None)) > 1
