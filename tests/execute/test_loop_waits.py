"""What the executor adds up of the waits of ranks, compared with sums by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpctrain.execute.loop_waits import LoopWaits
from hpctrain.execute.tracker import ReportRound
from hpctrain.worker.step_times import StepTimes


def made(report: int, time: float, *of_ranks: list[int | None] | None) -> ReportRound:
    def line(waited: list[int | None] | None) -> bytes:
        told: dict[str, Any] = {} if waited is None else {"waited": waited}
        return json.dumps({"report": report, "time": time, **told, "metrics": {}}).encode()

    lines = {rank: line(waited) for rank, waited in enumerate(of_ranks)}
    return ReportRound(report=report, lines=lines, parts={})


def test_waits_between_the_first_and_the_last_report_are_compared_over_ranks() -> None:
    waits = LoopWaits()
    waits.take(made(1, 100.0, [1_000_000, 0, 0], [3_000_000, 0, 0]))
    waits.take(made(2, 105.0, [1_000_001, 0, 0], [9_000_000, 0, 0]))
    waits.take(made(3, 110.0, [2_000_000, 500_000, 4_000_000], [7_000_000, 250_000, 0]))
    assert waits.to_json() == {
        "ranks": 2,
        "seconds": 10.0,
        "data": {"mean": 2.5, "most": [4.0, 1], "least": [1.0, 0]},
        "checkpoint": {"mean": 0.375, "most": [0.5, 0], "least": [0.25, 1]},
        "collective": {"mean": 2.0, "most": [4.0, 0], "least": [0.0, 1]},
        "steps": None,
    }


def test_what_is_made_again_does_not_count() -> None:
    waits = LoopWaits(reported=4)
    for report, waited in [(3, 100_000), (4, 200_000), (5, 900_000)]:
        waits.take(made(report, 10.0 * report, [waited, waited, 0]))
    found = waits.to_json()
    assert found is not None
    assert (found["seconds"], found["data"]["mean"]) == (10.0, 0.7)


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [made(1, 1.0, [0, 0, 0])],
        [made(1, 1.0, None, None), made(2, 2.0, None, None)],
        [made(1, 1.0, [0, 0, 0], None), made(2, 2.0, [5, 5, 5], None)],
    ],
    ids=["no report", "one report", "ranks of an earlier version", "one such rank"],
)
def test_nothing_is_written_if_nothing_is_known(rounds: list[ReportRound]) -> None:
    waits = LoopWaits()
    for round_ in rounds:
        waits.take(round_)
    assert waits.to_json() is None


def test_data_that_a_rank_reads_unseen_is_not_counted_as_none() -> None:
    waits = LoopWaits()
    waits.take(made(1, 1.0, [None, 0, 0], [None, 0, 0]))
    waits.take(made(2, 3.0, [800_000, 0, 0], [None, 0, 0]))
    unseen = waits.to_json()
    waits.take(made(3, 5.0, [800_000, 0, 0], [400_000, 0, 0]))
    seen = waits.to_json()
    assert unseen is not None
    assert seen is not None
    assert unseen["data"] is None
    assert seen["data"]["mean"] == 0.6


def test_of_sampled_steps_the_wait_in_the_last_collective_counts_once() -> None:
    waits = LoopWaits()
    waits.take(made(1, 1.0, [0, 0, 0], [0, 0, 0]))
    waits.take(made(2, 2.0, [0, 0, 0], [0, 0, 0]))
    late = [StepTimes(step=n, total=1000, first=100, last=900) for n in (1, 2)]
    early = [StepTimes(step=n, total=1000, first=50, last=400) for n in (1, 2)]
    waits.sample({0: early, 1: late})
    # A reading that says nothing about slow nodes is asked for again.
    waits.sample({0: early, 1: [*late, StepTimes(step=3, total=2000, first=0, last=2000)]})
    found = waits.to_json()
    assert found is not None
    assert found["steps"] == {"mean": 0.325, "most": [0.6, 0], "least": [0.05, 1]}
