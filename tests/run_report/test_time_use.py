"""Where the time of a run went, of ledgers that were added up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from hpctrain.run_report.shares import Efficiency, Width, find_widths, measure
from hpctrain.run_report.time_use import (
    Interval,
    Use,
    count_repeated,
    read_intervals_of_reports,
    split_time,
)


def event(time: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **fields}


def reports(attempt: int, *pairs: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"attempt": attempt, "report": n, "time": t, "metrics": {}} for n, t in pairs]


def seconds(intervals: Sequence[Interval]) -> dict[str, float]:
    found: dict[str, float] = {}
    for interval in intervals:
        found[interval.use.value] = found.get(interval.use.value, 0) + interval.seconds
    return found


def assert_whole(intervals: Sequence[Interval], begin: float, end: float) -> None:
    """Check that the intervals have neither a gap nor an overlap."""
    assert intervals[0].begin == begin
    assert intervals[-1].end == end
    for before, after in pairwise(intervals):
        assert before.end == after.begin
        assert before.seconds > 0


# Two attempts in one job: the first fails at second 50, after report 4 of which 2 are saved.
RESTARTED = [
    event(0, "fit", launcher="slurm", continues=False),
    event(1, "submitted", job_id="7"),
    event(11, "executor-started", job_id="7", restarts=0),
    event(12, "attempt-started", attempt=1, job_id="7", first_report=0),
    event(50, "attempt-ended", attempt=1, cause="WorkerError", kind="worker", saved=2),
    event(50.5, "restart", what="rank 1 failed"),
    event(52, "attempt-started", attempt=2, job_id="7", first_report=2),
    event(100, "attempt-ended", attempt=2, cause="finished", kind=None),
    event(101, "executor-ended"),
    event(101.5, "run-ended", state="finished"),
]
REPORTED = [
    *reports(1, (1, 20), (2, 25), (3, 30), (4, 35)),
    *reports(2, (3, 60), (4, 66), (5, 71), (6, 81)),
]


def test_a_restart_in_the_job_is_added_up() -> None:
    intervals = split_time(RESTARTED, REPORTED, until=101.5)
    assert_whole(intervals, 0, 101.5)
    assert seconds(intervals) == {
        # fit() to sbatch; executor to attempt; both attempts to their first reports.
        "start": 1 + 1 + 8 + 8,
        "queue": 10,
        # Reports 2, 3, 4 of the first attempt, and 5, 6 of the second.
        "training": 15 + 15,
        "lost": 15,
        "restart": 2,
        # Report 4 of the second attempt. Its first one, 3, is in the start.
        "repeated": 6,
        "ending": 19,
        "other": 1.5,
    }
    # The line of report 3 of the second attempt is a repeated one, too.
    assert count_repeated(REPORTED) == 2
    assert sorted(read_intervals_of_reports(REPORTED)) == [5, 5, 5, 5, 6, 10]


def test_a_requeued_job_waits_in_the_queue_again() -> None:
    events = [
        event(0, "fit", launcher="slurm"),
        event(0, "submitted", job_id="7"),
        event(5, "executor-started", job_id="7", restarts=0),
        event(5, "attempt-started", attempt=1),
        event(20, "attempt-ended", attempt=1, kind="preemption"),
        event(21, "requeued", job_id="7", why="it is preempted"),
        event(22, "executor-ended"),
        event(60, "executor-started", job_id="7", restarts=1),
        event(61, "attempt-started", attempt=2, first_report=2),
        event(70, "attempt-ended", attempt=2, kind=None),
        event(70, "run-ended", state="finished"),
    ]
    lines = [*reports(1, (1, 8), (2, 18)), *reports(2, (3, 65))]
    intervals = split_time(events, lines, until=70)
    assert_whole(intervals, 0, 70)
    assert seconds(intervals) == {
        "queue": 5 + 1 + 38,
        "start": 3 + 1 + 4,
        "training": 10,
        "lost": 2,
        "restart": 1,
        "ending": 5,
    }


def test_a_successor_that_is_submitted_while_the_attempt_ends_waits_from_the_end_on() -> None:
    events = [
        event(0, "executor-started", job_id="7"),
        event(0, "attempt-started", attempt=1),
        event(10, "handing-over", job_id="7"),
        event(10, "successor", job_id="8"),
        event(12, "attempt-ended", attempt=1, kind="time-limit"),
        event(13, "executor-ended"),
        event(30, "executor-started", job_id="8"),
    ]
    found = seconds(split_time(events, reports(1, (1, 4), (2, 9)), until=31))
    assert found == {"start": 4 + 1, "training": 5, "lost": 3, "restart": 1, "queue": 17}


def test_a_crash_without_an_end_stops_where_the_last_status_was_written() -> None:
    # The executor is killed at second 40; fit() is called again at second 1000.
    events = [
        event(0, "fit", launcher="local"),
        event(1, "executor-started", job_id=None),
        event(1, "attempt-started", attempt=1),
        event(1000, "executor-ended", until=40),
        event(1000, "fit", launcher="local", continues=False),
        event(1001, "executor-started", job_id=None),
        event(1002, "attempt-ended", attempt=1, kind="start", cause="the executor died"),
        event(1003, "attempt-started", attempt=2, first_report=1),
        event(1010, "attempt-ended", attempt=2, kind=None),
        event(1010, "run-ended", state="finished"),
    ]
    lines = [*reports(1, (1, 5), (2, 30)), *reports(2, (2, 1006), (3, 1008))]
    intervals = split_time(events, lines, until=1010)
    assert_whole(intervals, 0, 1010)
    assert seconds(intervals) == {
        "start": 1 + 4 + 1 + 2 + 3,
        "training": 25 + 2,
        "lost": 10,
        "stopped": 960,
        "ending": 2,
    }


def test_a_job_that_slurm_started_again_by_itself_was_queued() -> None:
    events = [
        event(0, "executor-started", job_id="7", restarts=0),
        event(0, "attempt-started", attempt=1),
        event(50, "executor-ended", until=20),
        event(50, "executor-started", job_id="7", restarts=1),
    ]
    assert seconds(split_time(events, reports(1, (1, 10)), until=51)) == {
        "start": 10 + 1,
        "lost": 10,
        "queue": 30,
    }
    # With the same start of the job, its supervisor started the executor.
    events[-1] = event(50, "executor-started", job_id="7", restarts=0)
    assert seconds(split_time(events, reports(1, (1, 10)), until=51))["restart"] == 30


def test_a_run_that_still_runs_ends_with_the_last_news_of_it() -> None:
    intervals = split_time(RESTARTED[:7], REPORTED[:6], until=70)
    assert_whole(intervals, 0, 70)
    assert intervals[-1] == Interval(use=Use.ENDING, begin=66, end=70, attempt=2, job=0)
    # Before its first report, and in the queue.
    assert split_time(RESTARTED[:7], REPORTED[:4], until=58)[-1].use is Use.START
    assert split_time(RESTARTED[:2], [], until=500)[-1].use is Use.QUEUE


def test_an_attempt_without_a_report_is_not_called_training() -> None:
    events = [
        event(0, "executor-started"),
        event(1, "attempt-started", attempt=1),
        event(91, "attempt-ended", attempt=1, kind=None),
    ]
    assert seconds(split_time(events, [], until=91)) == {"start": 1, "other": 90}
    # So it is not known what was useful, either.
    used = measure(split_time(events, [], until=91), {1: Width(cores=40, gpus=0)})
    assert (used.core_hours, used.useful, used.lost) == (91 * 40 / 3600, (None, None), (None, None))
    events[-1] = event(91, "attempt-ended", attempt=1, kind="start")
    intervals = split_time(events, [], until=91)
    assert seconds(intervals) == {"start": 91}
    assert measure(intervals, {1: Width(cores=40, gpus=0)}).useful == (0, 0)


@pytest.mark.parametrize("missing", range(len(RESTARTED)))
def test_a_ledger_that_lacks_a_line_still_gives_a_whole_time(missing: int) -> None:
    events = [each for n, each in enumerate(RESTARTED) if n != missing]
    intervals = split_time(events, REPORTED, until=101.5)
    assert_whole(intervals, events[0]["time"], 101.5)
    # What an attempt did is never longer than what its reports show.
    assert seconds(intervals).get("training", 0) <= 30


def test_clocks_that_differ_give_no_negative_time() -> None:
    events = [
        event(100, "submitted", job_id="7"),
        event(97, "executor-started", job_id="7"),
        event(98, "attempt-started", attempt=1),
        event(130, "attempt-ended", attempt=1, kind=None),
    ]
    intervals = split_time(events, reports(1, (1, 95), (2, 120), (3, 110)), until=131)
    assert_whole(intervals, 100, 131)
    assert seconds(intervals) == {"training": 20, "ending": 10, "other": 1}


def test_nothing_is_made_up_of_an_empty_ledger() -> None:
    assert split_time([], REPORTED, until=10) == []
    assert measure([], {}) == Efficiency()


def test_hours_are_those_of_the_ranks_while_an_executor_holds_them() -> None:
    intervals = split_time(RESTARTED, REPORTED, until=101.5)
    used = measure(intervals, {1: Width(cores=36, gpus=4), 2: Width(cores=72, gpus=0)}, [5, 5, 6])
    by_use = {share.use: share for share in used.shares}
    assert by_use[Use.QUEUE].core_hours == 0
    assert by_use[Use.TRAINING].core_hours == pytest.approx((15 * 36 + 15 * 72) / 3600)
    assert by_use[Use.TRAINING].gpu_hours == pytest.approx(15 * 4 / 3600)
    assert by_use[Use.REPEATED].core_hours == pytest.approx(6 * 72 / 3600)
    # fit() to sbatch holds nothing; executor to attempt 1 holds what attempt 1 does.
    assert by_use[Use.START].core_hours == pytest.approx((9 * 36 + 8 * 72) / 3600)
    # Lost in attempt 1, restarted with what the executor's first attempt held, and repeated.
    assert used.lost[0] == pytest.approx((15 * 36 + 2 * 36 + 6 * 72) / 3600)
    assert used.useful == (by_use[Use.TRAINING].core_hours, by_use[Use.TRAINING].gpu_hours)
    assert used.seconds == 101.5
    assert used.median_report_s == 5


def test_an_executor_that_died_before_its_attempt_held_what_was_planned() -> None:
    # The last status is older than the line of the attempt.
    events = [
        event(10, "executor-started"),
        event(12, "attempt-started", attempt=1),
        event(90, "executor-ended", until=11),
    ]
    intervals = split_time(events, [], until=100)
    assert seconds(intervals) == {"start": 2, "stopped": 88}
    assert measure(intervals, {None: Width(cores=36, gpus=0)}).core_hours == 2 * 36 / 3600
    assert measure(intervals, {}).core_hours is None


def test_hours_are_not_known_if_those_of_one_attempt_are_not() -> None:
    used = measure(split_time(RESTARTED, REPORTED, until=101.5), {1: Width(cores=1, gpus=0)})
    assert used.core_hours is None
    assert used.lost == (None, None)


PLAN = {
    "scaling_config": {"num_workers": 6},
    "launch_plan": {
        "placement": {"tasks_per_node": [4, 2], "cpus_per_task": 8, "gpus_per_task": 1}
    },
}


def test_ranks_have_what_the_plan_gives_them() -> None:
    assert find_widths([1, 2], PLAN, {2: 4}) == {
        None: Width(cores=48, gpus=6),
        1: Width(cores=48, gpus=6),
        2: Width(cores=32, gpus=4),
    }


def test_an_elastic_attempt_has_the_ranks_that_a_file_has_of_it_or_none() -> None:
    plan = {**PLAN, "scaling_config": {"num_workers": [2, 6]}}
    assert find_widths([1, 2], plan, {2: 4}) == {2: Width(cores=32, gpus=4)}


@pytest.mark.parametrize(
    "placement",
    [None, [], {}, {"tasks_per_node": [4], "cpus_per_task": "8", "gpus_per_task": 0}],
)
def test_a_damaged_plan_gives_no_ranks(placement: Any) -> None:
    assert find_widths([1], {**PLAN, "launch_plan": {"placement": placement}}, {}) == {}
    assert find_widths([1], {}, {1: 4}) == {}
