"""What the files of a run tell, also where some are damaged, missing or of a run that goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpctrain.run_report import facts
from hpctrain.run_report.facts import RunFacts, read_facts
from hpctrain.run_report.page import render_page
from hpctrain.run_report.report_json import run_to_json
from hpctrain.run_report.time_use import Use
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import scan_lines


@pytest.fixture
def copy(restarted: RunPaths, tmp_path: Path) -> RunPaths:
    shutil.copytree(restarted.root, tmp_path / "copy")
    return RunPaths(tmp_path / "copy")


def assert_shown(run: RunFacts) -> None:
    page = render_page([run], differences={}, now=0)
    assert page.count("<section") == 7


def test_a_run_with_a_restart_is_read_as_it_was(restarted: RunPaths) -> None:
    run = read_facts(restarted)
    assert (run.state, run.is_over, run.damage) == ("finished", True, ())
    assert (len(run.attempts), run.num_restarts, run.num_reports) == (2, 1, 20)
    # Reports 11 and 12 were made by both attempts.
    assert run.num_repeated == 2
    assert [saved.report for saved in run.checkpoints] == [5, 10, 15, 20]
    assert all(saved.took_s is not None and saved.size > 0 for saved in run.checkpoints)
    assert run.num_reported_checkpoints == 4
    uses = {share.use for share in run.efficiency.shares}
    assert {Use.START, Use.TRAINING, Use.REPEATED, Use.LOST, Use.RESTART} <= uses
    assert Use.QUEUE not in uses
    assert run.began_at is not None
    assert run.until is not None
    assert run.efficiency.seconds == pytest.approx(run.until - run.began_at)
    assert run.efficiency.core_hours == pytest.approx(
        sum(i.seconds for i in run.intervals if i.job is not None) / 3600
    )


def test_a_run_that_was_never_begun_has_a_plan_alone(copy: RunPaths) -> None:
    for path in (copy.ledger, copy.status, copy.metrics):
        path.unlink()
    shutil.rmtree(copy.checkpoints)
    run = read_facts(copy)
    assert (run.state, run.began_at, run.intervals, run.damage) == ("prepared", None, (), ())
    assert_shown(run)


def test_a_run_that_still_runs_ends_now(copy: RunPaths, restarted: RunPaths) -> None:
    lines = copy.ledger.read_text().splitlines()
    started = max(n for n, line in enumerate(lines) if '"attempt-started"' in line)
    copy.ledger.write_text("".join(f"{line}\n" for line in lines[: started + 1]))
    status = json.loads(copy.status.read_text())
    status |= {"state": "running", "ended_at": None, "path": str(copy.root)}
    status |= {"inode": copy.root.stat().st_ino, "device": copy.root.stat().st_dev}
    copy.status.write_text(json.dumps(status))
    run = read_facts(copy)
    assert (run.state, run.is_over, run.damage) == ("running", False, ())
    assert run.until == status["updated_at"]
    assert (run.attempts[-1].ended_at, run.attempts[-1].nodes) == (None, tuple(status["nodes"]))
    assert_shown(run)


def begin_again(paths: RunPaths) -> Callable[[], None]:
    """Take a run back to the middle of its first attempt, and return how it goes on to its end."""
    files = (paths.ledger, paths.metrics, paths.status)
    ended = {path: path.read_bytes() for path in files}
    status = json.loads(ended[paths.status])
    lines = paths.metrics.read_text().splitlines(keepends=True)
    paths.metrics.write_text("".join(lines[:3]))
    events = paths.ledger.read_text().splitlines(keepends=True)
    started = min(n for n, line in enumerate(events) if '"attempt-started"' in line)
    paths.ledger.write_text("".join(events[: started + 1]))
    status |= {"state": "running", "ended_at": None, "path": str(paths.root)}
    status |= {"inode": paths.root.stat().st_ino, "device": paths.root.stat().st_dev}
    paths.status.write_text(json.dumps({**status, "attempt": 1, "reports": 3}))

    def go_on() -> None:
        for path, content in ended.items():
            path.write_bytes(content)

    return go_on


def test_a_run_that_ends_while_it_is_read_is_not_damaged(
    copy: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = begin_again(copy)

    def scan(path: Path, is_valid: Callable[[Any], bool]) -> Any:
        lines = scan_lines(path, is_valid)
        if path == copy.metrics:
            go_on()
        return lines

    monkeypatch.setattr(facts, "scan_lines", scan)
    assert read_facts(copy).damage == ()


def test_one_whose_status_is_ahead_for_a_moment_is_read_again(
    copy: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = begin_again(copy)
    status = json.loads(copy.status.read_text())
    copy.status.write_text(json.dumps({**status, "attempt": 2}))
    looks: list[Path] = []

    def scan(path: Path, is_valid: Callable[[Any], bool]) -> Any:
        lines = scan_lines(path, is_valid)
        looks.append(path)
        if len(looks) == 2:
            go_on()
        return lines

    monkeypatch.setattr(facts, "scan_lines", scan)
    run = read_facts(copy)
    assert (run.damage, run.state, len(looks)) == ((), "finished", 4)


def cut_ledger(paths: RunPaths) -> None:
    content = paths.ledger.read_text()
    paths.ledger.write_text(content[: content.rindex('"attempt-ended"')])


def cut_metrics(paths: RunPaths) -> None:
    *lines, last = paths.metrics.read_bytes().splitlines(keepends=True)
    paths.metrics.write_bytes(b"".join(lines) + last[:30])


def break_status(paths: RunPaths) -> None:
    paths.status.write_text("{")


def remove_plan(paths: RunPaths) -> None:
    paths.plan.unlink()


def break_plan(paths: RunPaths) -> None:
    paths.plan.write_text('{"scaling_config": 7}')


def break_manifest(paths: RunPaths) -> None:
    (paths.checkpoints / "000010" / ".hpctrain-manifest.json").write_text("[]")


def replace_metrics(paths: RunPaths) -> None:
    paths.metrics.unlink()
    paths.metrics.mkdir()


def replace_ledger(paths: RunPaths) -> None:
    paths.ledger.unlink()
    paths.ledger.mkdir()


def remove_everything(paths: RunPaths) -> None:
    shutil.rmtree(paths.root)
    paths.root.mkdir()


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (cut_ledger, "ledger.jsonl: the last line is torn"),
        (cut_metrics, "metrics.jsonl is damaged: it ends at report 19 of 20"),
        (break_status, "status.json is damaged: it does not hold a JSON object"),
        (remove_plan, "plan.json is missing"),
        (break_plan, "plan.json is damaged: scaling_config is 7"),
        (break_manifest, "checkpoint 000010: its manifest is torn"),
        (replace_metrics, "metrics.jsonl is damaged"),
        (replace_ledger, "ledger.jsonl is damaged"),
        (remove_everything, "plan.json is missing"),
    ],
)
def test_what_is_damaged_is_named_and_the_rest_is_shown(
    copy: RunPaths, harm: Callable[[RunPaths], None], named: str
) -> None:
    harm(copy)
    run = read_facts(copy)
    assert named in "\n".join(run.damage)
    assert_shown(run)
    assert str(copy.root) in render_page([run], differences={}, now=0)


def test_lines_of_other_types_are_left_out_and_counted(copy: RunPaths) -> None:
    with copy.metrics.open("a") as file:
        file.write('7\n{"report": "x"}\n')
    run = read_facts(copy)
    assert "metrics.jsonl: 2 lines are damaged, and left out." in "\n".join(run.damage)
    assert run.num_reports == 20


ODD_VALUES = (
    *(None, True, -1, 0, 2**70, 1e300, "", "x" * 300, "\ud800\x00", [], {}, [[]], {"a": {"b": 1}}),
    *(float("nan"), float("-inf"), ["node1", 7], {"": []}),
)


def replace_one_value(random: Any, content: Any) -> Any:
    """Return a JSON value in which one value, at any depth, is another one."""
    if isinstance(content, (dict, list)) and content and random.random() < 0.9:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = keys[random.integers(len(keys))]
        changed = content.copy()
        changed[key] = replace_one_value(random, content[key])
        return changed
    return ODD_VALUES[random.integers(len(ODD_VALUES))]


def test_no_content_of_the_files_keeps_the_page_from_being_made(
    copy: RunPaths, each_example: Callable[..., None]
) -> None:
    manifest = copy.checkpoints / "000010" / ".hpctrain-manifest.json"
    files = [copy.ledger, copy.metrics, copy.status, copy.plan, manifest]
    whole = {path: path.read_bytes() for path in files}

    def check(random: Any) -> None:
        path = files[random.integers(len(files))]
        content = bytearray(whole[path])
        if (kind := random.random()) < 0.15:
            del content[random.integers(len(content)) :]
        elif kind < 0.3:
            for place in random.integers(len(content), size=5):
                content[place] = random.integers(256)
        elif path.suffix == ".jsonl":
            lines = content.splitlines()
            for place in random.integers(len(lines), size=3):
                changed = replace_one_value(random, json.loads(lines[place]))
                lines[place] = json.dumps(changed).encode()
            if random.random() < 0.2:
                lines = [lines[place] for place in random.permutation(len(lines))]
            content = b"\n".join(lines) + b"\n"
        else:
            content = json.dumps(replace_one_value(random, json.loads(content))).encode()
        path.write_bytes(content)
        try:
            run = read_facts(copy)
            assert_shown(run)
            json.dumps(run_to_json(run), allow_nan=False)
            for before, after in pairwise(run.intervals):
                assert before.end == after.begin
        finally:
            path.write_bytes(whole[path])

    each_example(check)


def test_metrics_that_are_nested_without_an_end_are_no_reason_to_fail(copy: RunPaths) -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    with copy.metrics.open("a") as file:
        file.write(f'{{"report":21,"attempt":2,"time":1.8e9,"checkpoint":null,"metrics":{deep}}}\n')
    assert_shown(read_facts(copy))


def test_an_attempt_whose_executor_was_killed_has_an_unknown_end(copy: RunPaths) -> None:
    events = [json.loads(line) for line in copy.ledger.read_text().splitlines()]
    status = json.loads(copy.status.read_text())

    def page(*, without: int, state: str) -> str:
        kept = [e for e in events if (e["event"], e.get("attempt")) != ("attempt-ended", without)]
        copy.ledger.write_text("".join(f"{json.dumps(e)}\n" for e in kept))
        # With another path it is that of a copy, which nothing runs.
        copy.status.write_text(json.dumps({**status, "state": state, "path": ""}))
        return render_page([read_facts(copy)], differences={}, now=0)

    killed = "unknown: its executor was killed before it could write why, or could not"
    assert killed in page(without=1, state="finished"), "the next executor could not write so"
    assert killed in page(without=2, state="stopped")
    shown = page(without=2, state="running")
    assert "none is recorded: it runs, or its executor was killed after <time" in shown
