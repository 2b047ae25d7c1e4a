"""What the files of a run tell, also where some are damaged, missing or of a run that goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.run_report.facts import RunFacts, read_facts
from hpctrain.run_report.page import render_page
from hpctrain.run_report.time_use import Use
from hpctrain.rundir.paths import RunPaths


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
