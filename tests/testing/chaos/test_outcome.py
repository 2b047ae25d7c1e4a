"""What counts as a difference, and as the wrong checkpoint to resume from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.testing.chaos.fault import Entry, Point
from hpctrain.testing.chaos.outcome import RunOutcome, differences, wrong_resumes

RUN = RunOutcome(
    state="finished",
    reports={1: [{"loss": 0.5}], 2: [{"loss": 0.25}]},
    checkpoint={"model.npy": "abc"},
    checkpoint_path=Path("/no/such/run/checkpoints/000002"),
    first_reports=[0],
    attempt_times=[10.0],
    events=[],
)


def told(**changes: Any) -> list[str]:
    return differences({"run": RUN}, {"run": replace(RUN, **changes)})


def committed(name: str, time: float) -> Entry:
    path = f"run/checkpoints/{name}"
    return Entry(time=time, point=Point(role="executor", op="rename", path=path, moment="after"))


def test_the_same_outcome_has_no_difference() -> None:
    assert told() == []


def test_the_last_bit_of_a_metric_counts() -> None:
    reports = {**RUN.reports, 2: [{"loss": 0.25000000000000006}]}
    assert told(reports=reports) == ["run run: report 2: loss is 0.25000000000000006, not 0.25"]


def test_every_attempt_at_a_report_counts_and_not_only_the_last() -> None:
    reports = {**RUN.reports, 2: [{"loss": 0.3}, {"loss": 0.25}]}
    assert told(reports=reports) == ["run run: report 2: loss is 0.3, not 0.25"]


def test_not_a_number_is_equal_to_itself() -> None:
    nan = replace(RUN, reports={1: [{"loss": float("nan")}]})
    assert differences({"run": nan}, {"run": nan}) == []


def test_ignored_metrics_do_not_count() -> None:
    other = replace(RUN, reports={**RUN.reports, 1: [{"loss": 7.0}]})
    assert differences({"run": RUN}, {"run": other}, ignore=["loss"]) == []


def test_missing_and_new_reports_are_differences() -> None:
    assert told(reports={1: [{"loss": 0.5}]}) == ["run run: report 2 is missing"]
    reports = {**RUN.reports, 3: [{"loss": 0.1}]}
    assert told(reports=reports) == ["run run: report 3 is new"]


def test_other_weights_are_named_by_their_file() -> None:
    assert told(checkpoint={"model.npy": "xyz"}) == [
        "run run: the last checkpoint differs in model.npy"
    ]


def test_an_attempt_has_to_resume_from_what_was_complete_when_it_began() -> None:
    run = replace(RUN, first_reports=[0, 3], attempt_times=[10.0, 20.0])
    trace = [committed("000003", 12.0), committed("000006", 15.0), committed("000009", 25.0)]
    (problem,) = wrong_resumes({"run": run}, trace, {})
    assert "resumed from report 3, although the newest complete checkpoint was 6" in problem


def test_a_damaged_checkpoint_is_not_to_be_resumed_from() -> None:
    run = replace(RUN, first_reports=[0, 3, 6], attempt_times=[10.0, 20.0, 30.0])
    trace = [committed("000003", 12.0), committed("000006", 15.0), committed("000006", 25.0)]
    damaged = {"run/checkpoints/000006": 17.0}
    assert wrong_resumes({"run": run}, trace, damaged) == []
    assert wrong_resumes({"run": run}, trace, {}) != []
