"""A sweep among runs: one line in ``hpctrain list`` and ``hpctrain top``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain.cli.json_output import schema
from hpctrain.cli.main import app
from hpctrain.launch.claim import claimed
from hpctrain.rundir.paths import RunPaths
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.overview import OverviewReader, read_overview
from hpctrain.tune.trial import Trial
from tests.cli.test_json_output import check
from tests.cli.test_tune import write_run

SUMMARY = (
    "sweep of 5 trials: 1 running, 2 waiting, 1 finished, 1 failed; best trial_00001 val/loss=0.25"
)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Return a directory with a run and with a sweep that has a trial in each state."""
    root = tmp_path / "runs"
    root.mkdir()
    write_run(root / "alone", "finished", reports=3, metrics={"loss": 1.0})
    (root / "sweep").mkdir()
    ledger = SweepLedger(paths=SweepPaths(root=root / "sweep"))
    ledger.append("sweep-started", metric="val/loss", mode="min", seed=3)
    for number in range(5):
        ledger.add_trial(Trial(trial_id=f"trial_{number:05d}", config={"x": number}))
    events = ("trial-ended", "trial-started", "trial-failed", "trial-paused")
    for number, event in enumerate(events):
        name = f"trial_{number:05d}"
        ledger.append("trial-started", trial=name)
        if event == "trial-paused":
            ledger.append("trial-pause", trial=name)
        metrics = {"val": {"loss": 0.5 + number}}
        ledger.append(event, trial=name, reports=1, metrics=metrics, reason="x")
    # What it reports is not in the ledger yet.
    write_run(root / "sweep/trial_00001", "running", reports=9, metrics={"val": {"loss": 0.25}})
    return root


def hpctrain(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_sweep_is_one_line_and_its_trials_are_listed_where_they_are_asked_for(
    storage: Path,
) -> None:
    head, sweep, alone = hpctrain("list", storage).splitlines()
    assert head.startswith("RUN")
    assert sweep.split()[:2] == ["sweep", "interrupted"]
    assert sweep.endswith(SUMMARY)
    assert alone.split()[:2] == ["alone", "finished"]
    assert "trial_00001" not in alone
    (_, trial) = hpctrain("list", storage / "sweep").splitlines()
    assert trial.split()[0] == "trial_00001"
    (shown,) = [line for line in hpctrain("top", "-s", storage).splitlines() if "sweep" in line]
    assert shown.startswith("sweep  interrupted")
    assert shown.rstrip("…") in f"{shown.split('sweep of')[0]}{SUMMARY}"


def test_trials_at_work_are_compared_by_what_each_report_gets(tmp_path: Path) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="training_iteration", mode="max")
    for number, reports in enumerate([2, 7]):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={"x": number}))
        ledger.append("trial-started", trial=name)
        write_run(tmp_path / name, "running", reports=reports, metrics={"loss": 1.0})
    overview = read_overview(tmp_path)
    assert (overview.best, overview.value) == ("trial_00001", 7)


def test_a_trial_whose_last_report_lacks_the_metric_is_compared_by_the_last_that_has_it(
    tmp_path: Path,
) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="loss", mode="min")
    for number, last in enumerate([{"loss": 0.5}, {"status": "ok"}, {"loss": float("nan")}]):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={"x": number}))
        write_run(tmp_path / name, "finished", reports=1, metrics={"loss": 0.1})
        line = {"report": 2, "attempt": 1, "time": 2.0, "metrics": last, "checkpoint": None}
        with RunPaths(tmp_path / name).metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
        ledger.append("trial-ended", trial=name, reports=2, metrics=last, reason="")
    overview = read_overview(tmp_path)
    assert (overview.best, overview.value) == ("trial_00001", 0.1)


def sweep_of_two(root: Path, *, num_reports: int, metric: str = "loss") -> SweepLedger:
    """Write a sweep with a trial that has ended and one at work, whose last reports lack "loss"."""
    ledger = SweepLedger(paths=SweepPaths(root=root))
    ledger.append("sweep-started", metric=metric, mode="min")
    for number, state in enumerate(["finished", "running"]):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={}))
        write_run(root / name, state, reports=1, metrics={"loss": 0.1 + number})
        ledger.append("trial-started", trial=name)
        add_lines(root / name, {"loss": 0.1 + number}, range(2, num_reports))
        add_lines(root / name, {"status": "ok"}, [num_reports])
    last: dict[str, Any] = {"reports": num_reports, "metrics": {"status": "ok"}}
    ledger.append("trial-ended", trial="trial_00000", reason="", **last)
    return ledger


def add_lines(root: Path, metrics: dict[str, Any], numbers: Iterable[int]) -> None:
    with RunPaths(root).metrics.open("a") as file:
        for number in numbers:
            line = {"report": number, "attempt": 1, "time": 2.0, "metrics": metrics}
            file.write(json.dumps({**line, "checkpoint": None}) + "\n")


def test_a_reader_does_not_read_all_reports_again_for_one_that_has_the_metric(
    tmp_path: Path,
) -> None:
    def count_steps(num_reports: int) -> int:
        steps, root = 0, tmp_path / str(num_reports)
        root.mkdir()
        sweep_of_two(root, num_reports=num_reports)
        reader = OverviewReader()
        reader.read(root)
        # The one at work goes on.
        add_lines(root / "trial_00001", {"loss": 0.05}, [num_reports + 1])
        add_lines(root / "trial_00001", {"status": "ok"}, [num_reports + 2])

        def note(frame: Any, event: str, argument: Any) -> Any:
            nonlocal steps
            steps += 1
            return note

        before = sys.gettrace()
        sys.settrace(note)
        try:
            overview = reader.read(root)
        finally:
            sys.settrace(before)
        assert (overview.best, overview.value) == ("trial_00001", 0.05)
        return steps

    assert count_steps(6000) < 2 * count_steps(1500)


def test_a_value_far_from_the_end_is_found_and_a_reader_sees_what_is_reported_later(
    tmp_path: Path,
) -> None:
    sweep_of_two(tmp_path, num_reports=3)
    for name in ("trial_00000", "trial_00001"):
        add_lines(tmp_path / name, {"status": "ok"}, range(4, 2000))
    reader = OverviewReader()
    found = [reader.read(tmp_path) for _ in range(2)] + [read_overview(tmp_path)]
    assert [(each.best, each.value) for each in found] == 3 * [("trial_00000", 0.1)]
    add_lines(tmp_path / "trial_00000", {"loss": 2.5}, [2000])
    later = reader.read(tmp_path)
    assert (later.best, later.value) == ("trial_00001", 1.1)


@pytest.mark.parametrize("metric", ["loss", "time_total_s"])
@pytest.mark.parametrize("damaged", ["metrics.jsonl", "ledger.jsonl"])
def test_a_trial_whose_files_are_damaged_hides_no_other(
    tmp_path: Path, damaged: str, metric: str
) -> None:
    ledger = sweep_of_two(tmp_path, num_reports=3, metric=metric)
    for name in ("trial_00000", "trial_00001"):
        (tmp_path / name / damaged).unlink(missing_ok=True)
        (tmp_path / name / damaged).mkdir()
        (tmp_path / name / "status.json").unlink()
    ledger.add_trial(Trial(trial_id="trial_00002", config={}))
    ledger.append("trial-started", trial="trial_00002")
    last = {"loss": 0.01, "time_total_s": 0.01}
    ledger.append("trial-ended", trial="trial_00002", reports=1, metrics=last, reason="")
    overview = read_overview(tmp_path)
    assert (overview.num_trials, overview.best, overview.value) == (3, "trial_00002", 0.01)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verb", ["list", "top"])
def test_the_line_fits_a_terminal(
    storage: Path, verb: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    where = ("-s", storage) if verb == "top" else (storage,)
    lines = hpctrain(verb, *where).splitlines()
    assert max(map(len, lines)) <= width
    (sweep,) = [line for line in lines if line.startswith("sweep")]
    assert "sweep of 5 t" in sweep


def test_json_has_a_sweep_with_the_fields_of_a_run_and_its_trials(storage: Path) -> None:
    found: list[dict[str, Any]] = json.loads(hpctrain("list", storage, "--json"))
    check(found, schema("list"))
    sweep, alone = found
    assert "sweep" not in alone
    assert (sweep["name"], sweep["state"], sweep["live"]) == ("sweep", "interrupted", False)
    assert sweep["metrics"] == {"val/loss": 0.25}
    assert sweep["sweep"] == {
        "trials": 5,
        "running": 1,
        "waiting": 2,
        "finished": 1,
        "failed": 1,
        "metric": "val/loss",
        "mode": "min",
        "best": "trial_00001",
        "value": 0.25,
    }


def test_a_sweep_shows_what_became_of_it_and_a_damaged_one_hides_no_other(storage: Path) -> None:
    root = storage / "sweep"
    with claimed(RunPaths(root)):
        assert read_overview(root).state == "running"
    reader = OverviewReader()
    assert reader.read(root).state == "interrupted"
    SweepLedger(paths=SweepPaths(root=root)).append("sweep-ended", reason="time is up")
    ended = reader.read(root)
    assert (ended.state, ended.reason) == ("ended", "time is up")
    assert reader.read(root) is ended
    (storage / "torn").mkdir()
    (storage / "torn/tune.jsonl").write_text('{"event": "sweep-st')
    states = {run["name"]: run["state"] for run in json.loads(hpctrain("list", storage, "--json"))}
    assert states == {"sweep": "ended", "torn": "unread", "alone": "finished"}
