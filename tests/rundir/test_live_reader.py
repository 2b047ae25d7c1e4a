"""A run is read again and again, whatever becomes of its files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir import live_reader
from hpctrain.rundir.live import Live, NodeUse, encode_live
from hpctrain.rundir.live_reader import LiveReader, make_view
from hpctrain.rundir.live_text import live_rows, render_page
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.rundir.store import CheckpointStore

STATUS = RunStatus(
    name="run", state=RunState.RUNNING, launcher="local", attempt=1, world_size=3, reports=2
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.plan.write_text(json.dumps({"run_config": {"stop": "{'training_iteration': 10}"}}))
    write_status(paths, STATUS)
    write_live(paths)
    write_reports(paths, 1, 2)
    return paths


def write_live(paths: RunPaths, *, attempt: int = 1, written_at: float = 1000.0) -> None:
    live = Live(
        attempt=attempt,
        written_at=written_at,
        phases=("training", "training", "done"),
        reports=(2, 1, 2),
        idle_s=(1, 5, 90),
        node_ranks=(0, 0, 1),
        nodes=("n1", "n2"),
        uses=(NodeUse(cpus=2, cpu=1.0), NodeUse()),
    )
    paths.live.write_bytes(encode_live(live))


def write_reports(paths: RunPaths, *numbers: int, attempt: int = 1) -> None:
    with open(paths.metrics, "a") as file:
        for number in numbers:
            line: dict[str, Any] = {"report": number, "attempt": attempt, "time": 100.0 + number}
            line |= {"checkpoint": None, "metrics": {"loss": 1 / number}}
            file.write(json.dumps(line) + "\n")


def commit(paths: RunPaths, report: int, **name: Any) -> None:
    directory = staging_directory(paths.checkpoints, attempt=1, report=report, rank=0)
    directory.mkdir(parents=True)
    (directory / "model.bin").write_bytes(b"12345")
    CheckpointStore(paths.checkpoints).commit(
        attempt=1,
        report=report,
        world_size=1,
        metrics={},
        parts={0: StagedPart(files=tuple(seal(directory)), **name)},
    )


def view(reader: LiveReader, **changes: Any) -> LiveView:
    given: dict[str, Any] = {"state": "running", "live": True, "now": 2000.0, **changes}
    return make_view(reader.read(), reader.paths, **given)


def test_what_the_files_hold_is_seen_together(paths: RunPaths) -> None:
    commit(paths, 1)
    commit(paths, 2)
    (paths.checkpoints / ".tmp-1-000003").mkdir()
    (paths.checkpoints / "000001.damaged").mkdir()
    seen = view(LiveReader(paths))
    assert (seen.reports, seen.reported_at, seen.metrics) == (2, 102.0, {"loss": 0.5})
    assert [report.number for report in seen.history] == [1, 2]
    assert seen.speed.reports == 1.0
    assert (seen.goals[0].value, seen.goals[0].left_s) == (2.0, 8.0)
    assert (seen.saved.count, seen.saved.newest, seen.saved.size) == (2, "000002", 5)
    assert seen.phases() == {"training": 2, "done": 1}
    assert seen.order(slowest_first=True) == [1, 0, 2]
    assert seen.order(slowest_first=False) == [0, 1, 2]
    assert list(seen.node_use()) == ["n1"]
    said = seen.to_json()
    assert [rank["rank"] for rank in said["slowest_ranks"]] == [1, 0, 2]
    assert said["rank_phases"] == {"training": 2, "done": 1}


def test_a_rank_without_progress_ages_with_the_status_and_not_after_the_end(
    paths: RunPaths,
) -> None:
    status = write_status(paths, STATUS)
    write_live(paths, written_at=status.updated_at - 30)
    reader = LiveReader(paths)
    assert view(reader).idle_s(1) == 35
    # A clock of the reader that is off says nothing.
    assert view(reader, now=10.0).idle_s(1) == 35
    write_status(paths, replace(STATUS, state=RunState.FINISHED))
    assert view(reader, live=False).idle_s(1) == 5


def test_only_what_has_changed_is_read(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LiveReader(paths)
    first = reader.read()
    opened: list[str] = []

    def note(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(Path(path).name)
        raise AssertionError("nothing has changed")

    with monkeypatch.context() as patch:
        for name in ("read_status", "read_live", "read_plan", "open_regular", "read_manifest"):
            patch.setattr(live_reader, name, note)
        assert reader.read() == first
        assert opened == []
    write_reports(paths, 3)
    assert [report.number for report in reader.read().history] == [1, 2, 3]


def test_a_line_that_is_being_written_is_read_once_it_is_whole(paths: RunPaths) -> None:
    reader = LiveReader(paths)
    reader.read()
    whole = paths.metrics.read_bytes()
    line = whole.splitlines(keepends=True)[0].replace(b'"report": 1', b'"report": 3')
    paths.metrics.write_bytes(whole + line[:20])
    assert len(reader.read().history) == 2
    with open(paths.metrics, "ab") as file:
        file.write(line[20:] + b"damaged\n\xff\n[]\n")
    assert [report.number for report in reader.read().history] == [1, 2, 3]


def test_reports_that_another_attempt_makes_again_count_once(paths: RunPaths) -> None:
    write_reports(paths, 3, 4)
    write_reports(paths, 3, attempt=2)
    # Of ranks that stood still, and do not know.
    write_reports(paths, 5, attempt=1)
    files = LiveReader(paths).read()
    assert [report.number for report in files.history] == [1, 2, 3]
    assert [report.number for report in files.latest] == [3]


def test_of_many_reports_some_are_kept_and_the_last_ones_all(paths: RunPaths) -> None:
    reader = LiveReader(paths)
    write_reports(paths, *range(3, 5000))
    files = reader.read()
    assert 200 < len(files.history) <= 512
    assert files.history[-1].number > 4980
    assert [report.number for report in files.latest] == list(range(4936, 5000))


def test_of_long_metrics_only_the_end_is_read(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(paths, *range(3, 100))
    monkeypatch.setattr(live_reader, "_LAST_BYTES", 1000)
    numbers = [report.number for report in LiveReader(paths).read().history]
    assert numbers[0] > 80
    assert numbers[-1] == 99


def test_metrics_that_begin_anew_are_read_anew(paths: RunPaths) -> None:
    reader = LiveReader(paths)
    write_reports(paths, *range(3, 50))
    reader.read()
    paths.metrics.unlink()
    write_reports(paths, 1)
    assert [report.number for report in reader.read().history] == [1]


def test_ranks_of_another_attempt_are_not_shown(paths: RunPaths) -> None:
    write_live(paths, attempt=2)
    assert view(LiveReader(paths)).ranks is None


def test_metrics_that_lost_their_end_are_behind_the_status(paths: RunPaths) -> None:
    write_status(paths, replace(STATUS, reports=9, metrics={"loss": 7}))
    seen = view(LiveReader(paths))
    assert (seen.reports, seen.reported_at, seen.metrics) == (9, None, {"loss": 7})


def test_a_checkpoint_with_a_name_of_its_own_is_the_newest_by_its_time(paths: RunPaths) -> None:
    commit(paths, 1)
    os.rename(paths.checkpoints / "000001", paths.checkpoints / "best")
    os.utime(paths.checkpoints / "best", (10**9, 10**9))
    commit(paths, 2)
    assert view(LiveReader(paths)).saved.newest == "000002"
    (paths.checkpoints / "000002" / ".hpctrain-manifest.json").write_text("{")
    os.utime(paths.checkpoints)
    saved = view(LiveReader(paths)).saved
    assert (saved.count, saved.newest, saved.size) == (2, "000002", None)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["status", "live", "metrics", "plan", "checkpoints"])
@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"\xff{"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 10**5 + b"\n"),
        lambda path: path.write_text('{"run_config": 7}'),
    ],
)
def test_a_file_that_is_missing_or_damaged_does_not_hide_the_others(
    paths: RunPaths, name: str, make: Any
) -> None:
    path = getattr(paths, name)
    path.unlink(missing_ok=True)
    make(path)
    reader = LiveReader(paths)
    for _ in range(2):
        seen = view(reader)
    assert seen.name in ("run", paths.root.name)
    if name != "metrics":
        assert [report.number for report in seen.history] == [1, 2]
    if name not in ("live", "status"):
        assert seen.phases() == {"training": 2, "done": 1}


def test_a_status_that_cannot_be_read_for_a_moment_stays(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LiveReader(paths)
    reader.read()

    def fail(paths: RunPaths) -> None:
        raise OSError(5, "Input/output error")

    os.utime(paths.status)
    with monkeypatch.context() as patch:
        patch.setattr(live_reader, "read_status", fail)
        files = reader.read()
    assert files.status is not None
    assert "Input/output error" in files.problem
    assert reader.read().problem == ""


def test_what_a_file_holds_moves_no_cursor(paths: RunPaths) -> None:
    names = ("n\x1b[2J", "n\n9  forged")
    live = Live(
        attempt=1,
        written_at=1000.0,
        phases=("a\x1b[2J", "b\nc"),
        reports=(1, 9),
        idle_s=(100, 200),
        node_ranks=(0, 1),
        nodes=names,
        uses=(NodeUse(cpus=2, cpu=1.0), NodeUse(cpus=2, cpu=2.0)),
    )
    paths.live.write_bytes(encode_live(live))
    seen = view(LiveReader(paths))
    shown = [*render_page(seen, width=120), *(value for _, value in live_rows(seen))]
    assert any("forged" in line for line in shown)
    assert all(line.isprintable() for line in shown)


def test_how_quick_reports_were_says_nothing_once_they_have_stopped(paths: RunPaths) -> None:
    reader = LiveReader(paths)
    moving = dict(live_rows(view(reader, now=105.0)))
    assert moving["speed"] == "1 reports/s"
    assert moving["goal"].endswith("left")
    still = dict(live_rows(view(reader, now=150.0)))
    assert "speed" not in still
    assert still["goal"] == "training_iteration 2 of 10"
