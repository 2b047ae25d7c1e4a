"""What the training consists of, of ledgers that were added up by hand, and of random ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpctrain.run_report.time_use import Interval, Use
from hpctrain.run_report.training_parts import (
    Activity,
    AttemptWaits,
    RankShare,
    TrainingPart,
    Wait,
    read_waits,
    split_training,
)


def interval(use: Use, begin: float, end: float, attempt: int | None) -> Interval:
    return Interval(use=use, begin=begin, end=end, attempt=attempt, job=0)


def amounts(mean: float, most: tuple[float, int], least: tuple[float, int]) -> dict[str, Any]:
    return {"mean": mean, "most": list(most), "least": list(least)}


def ended(attempt: int, **waits: Any) -> dict[str, Any]:
    return {"event": "attempt-ended", "time": 0.0, "attempt": attempt, "waits": waits}


def line(attempt: int, report: int, time: float, waited: Any) -> dict[str, Any]:
    told = {} if waited is None else {"waited": waited}
    return {"attempt": attempt, "report": report, "time": time, "metrics": {}, **told}


DATA = amounts(1.0, (3.0, 2), (0.5, 0))
CHECKPOINT = amounts(2.0, (2.0, 1), (2.0, 0))
NONE = amounts(0.0, (0.0, 0), (0.0, 0))
TRAINED = [
    interval(Use.START, 0, 5, 1),
    interval(Use.TRAINING, 5, 25, 1),
    interval(Use.LOST, 25, 30, 1),
]


def split(*events: dict[str, Any], has_gpus: bool = False) -> dict[Activity, TrainingPart]:
    parts = split_training(TRAINED, read_waits(events, [], has_gpus=has_gpus))
    return {each.part: each for each in parts}


def test_the_training_is_split_by_shares_of_its_reports() -> None:
    steps = amounts(0.25, (0.4, 3), (0.1, 2))
    # The last reports of ranks did not arrive: the rates hold for all of the 20 seconds.
    event = ended(
        1, ranks=4, seconds=10.0, data=DATA, checkpoint=CHECKPOINT, collective=NONE, steps=steps
    )
    found = split(event)
    seconds = {part.value: each.seconds for part, each in found.items()}
    assert seconds == {"compute": 9.0, "data": 2.0, "checkpoint": 4.0, "collective": 5.0}
    data, collective = found[Activity.DATA], found[Activity.COLLECTIVE]
    assert (data.most, data.least, data.attempt, data.unseen_s) == ((6.0, 2), (1.0, 0), 1, 0.0)
    assert (collective.most, collective.least) == ((8.0, 3), (2.0, 2))


def test_what_is_not_known_is_not_zero() -> None:
    event = ended(
        1, ranks=2, seconds=10.0, data=None, checkpoint=CHECKPOINT, collective=NONE, steps=None
    )
    found = split(event)
    for part in (Activity.DATA, Activity.COLLECTIVE):
        assert found[part].seconds is None
        assert found[part].unseen_s == 20.0
    assert found[Activity.COMPUTE].seconds == 16.0


def test_one_rank_waits_for_no_other() -> None:
    event = ended(
        1, ranks=1, seconds=10.0, data=None, checkpoint=CHECKPOINT, collective=NONE, steps=None
    )
    assert split(event)[Activity.COLLECTIVE].seconds == 0.0


def test_with_gpus_the_calls_of_collectives_say_nothing() -> None:
    steps = amounts(0.25, (0.4, 3), (0.1, 2))
    own = amounts(1.0, (2.0, 0), (0.0, 1))
    event = ended(1, ranks=2, seconds=10.0, collective=NONE, steps=steps)
    assert split(event)[Activity.COLLECTIVE].seconds == 5.0
    assert split(event, has_gpus=True)[Activity.COLLECTIVE].seconds is None
    event["waits"]["collective"] = own
    assert split(event)[Activity.COLLECTIVE].seconds == 7.0
    only_own = split(event, has_gpus=True)[Activity.COLLECTIVE]
    assert (only_own.seconds, only_own.unseen_s) == (2.0, 20.0)


def test_shares_that_are_too_large_are_made_smaller_for_all_ranks_alike() -> None:
    steps = amounts(0.6, (0.8, 1), (0.4, 0))
    event = ended(1, ranks=2, seconds=10.0, data=amounts(7.0, (8.0, 0), (6.0, 1)), steps=steps)
    found = split(event)
    for part in (Activity.DATA, Activity.COLLECTIVE):
        each = found[part]
        assert each.seconds is not None
        assert each.most is not None
        assert each.least is not None
        assert each.least[0] < each.seconds < each.most[0]


def test_the_most_of_two_ranks_is_that_of_none() -> None:
    own = amounts(2.0, (3.0, 0), (1.0, 1))
    steps = amounts(0.2, (0.4, 1), (0.1, 0))
    found = split(ended(1, ranks=2, seconds=10.0, collective=own, steps=steps))[Activity.COLLECTIVE]
    assert (found.seconds, found.most, found.least) == (8.0, None, None)
    same = amounts(0.2, (0.4, 0), (0.1, 1))
    found = split(ended(1, ranks=2, seconds=10.0, collective=own, steps=same))[Activity.COLLECTIVE]
    assert found.most == (pytest.approx(14.0), 0)
    assert found.least == (pytest.approx(4.0), 1)


def test_without_the_end_in_the_ledger_the_reports_of_rank_0_tell_its_own() -> None:
    lines = [
        line(1, 1, 5.0, [0, 0, 0]),
        line(1, 2, 15.0, [1_000_000, 500_000, 7]),
        line(2, 2, 20.0, [None, 0, 0]),
        line(2, 3, 30.0, [None, 2_000_000, 7]),
    ]
    waits = read_waits([], lines, has_gpus=False)
    assert all(each.is_of_rank_0 for each in waits.values())
    trained = [interval(Use.TRAINING, 5, 15, 1), interval(Use.TRAINING, 20, 30, 2)]
    found = {each.part: each for each in split_training(trained, waits)}
    assert found[Activity.DATA].seconds == pytest.approx(1.0)
    assert found[Activity.DATA].unseen_s == 10.0
    assert found[Activity.DATA].most is None
    assert found[Activity.DATA].is_of_rank_0
    assert found[Activity.CHECKPOINT].seconds == pytest.approx(2.5)
    assert found[Activity.COLLECTIVE].seconds is None


def test_reports_that_were_made_again_do_not_count() -> None:
    lines = [
        *(line(1, n, float(n), [0, 0, 0]) for n in (1, 2, 3)),
        line(2, 2, 10.0, [9_000_000, 0, 0]),
        line(2, 3, 11.0, [9_500_000, 0, 0]),
        line(2, 4, 15.0, [10_500_000, 0, 0]),
    ]
    waits = read_waits([], lines, has_gpus=False)
    assert waits[2].waits[Activity.DATA].share == pytest.approx(0.25)


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": 0.0},
        {"seconds": "10"},
        {"seconds": math.nan},
        {"seconds": -1.0},
        {"data": {"mean": "x"}},
        {"data": {"mean": -1.0, "most": [1, 1], "least": [1, 1]}},
        {"data": {"mean": math.inf, "most": [1, 1], "least": [1, 1]}},
        {"data": {"mean": 1.0, "most": [1], "least": [1, 1]}},
        {"data": {"mean": 1.0, "most": [1, "1"], "least": [1, 1]}},
        {"data": {"mean": 1.0, "most": [1, -1], "least": [1, 1]}},
        {"data": [1, 2, 3]},
        {"data": True},
        {"data": {"mean": 10**400, "most": [1, 1], "least": [1, 1]}},
        {"data": {"mean": 1.0, "most": [0.5, 1], "least": [1.0, 0]}},
    ],
)
def test_what_is_damaged_is_not_known(damage: dict[str, Any]) -> None:
    event = ended(1, **{"ranks": 2, "seconds": 10.0, "data": DATA, **damage})
    # As it comes from a file.
    found = split(json.loads(json.dumps(event)))
    assert Activity.DATA not in found or found[Activity.DATA].seconds is None


@pytest.mark.parametrize(
    "waited", [7, [], [1, 2], [1, 2, "3"], [1, -2, 3], {"data": 1}, "x", [10**400, math.inf, 0]]
)
def test_reports_with_damaged_waits_tell_nothing(waited: Any) -> None:
    lines = [line(1, 1, 5.0, waited), line(1, 2, 6.0, waited)]
    assert read_waits([], lines, has_gpus=False) == {}


def test_runs_of_earlier_versions_have_no_parts() -> None:
    event = {"event": "attempt-ended", "time": 0.0, "attempt": 1}
    lines = [line(1, 1, 5.0, None), line(1, 2, 25.0, None)]
    assert split_training(TRAINED, read_waits([event], lines, has_gpus=False)) == ()
    assert split_training([], {}) == ()


def test_the_parts_always_make_the_training(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def example(random: np.random.Generator) -> None:
        intervals, waits, at = [], {}, 0.0
        for attempt in range(1, random.integers(2, 6)):
            for use in (Use.START, Use.REPEATED, Use.TRAINING, Use.LOST):
                end = at + random.exponential()
                intervals.append(interval(use, at, end, attempt))
                at = end
            if random.random() < 0.7:
                kinds = [part for part in Activity if part is not Activity.COMPUTE]
                known = {
                    part: Wait(
                        share=random.random(),
                        most=RankShare(share=1.0, rank=1),
                        least=RankShare(share=0.0, rank=0),
                    )
                    for part in kinds
                    if random.random() < 0.7
                }
                waits[attempt] = AttemptWaits(waits=known)
        parts = split_training(intervals, waits)
        assert bool(parts) is bool(waits)
        if not parts:
            return
        trained = {i.attempt: i.seconds for i in intervals if i.use is Use.TRAINING}
        total = math.fsum(trained.values())
        assert math.fsum(each.seconds or 0.0 for each in parts) == pytest.approx(total)
        assert [each.part for each in parts] == list(Activity)
        for each in parts[1:]:
            # The reference: each attempt by itself, in proportion where the shares are too large.
            expected = unseen = 0.0
            for attempt, length in trained.items():
                found = waits[attempt].waits if attempt in waits else {}
                if each.part not in found:
                    unseen += length
                    continue
                whole = sum(wait.share for wait in found.values())
                expected += length * found[each.part].share / max(whole, 1.0)
            assert each.unseen_s == pytest.approx(unseen)
            assert (each.seconds or 0.0) == pytest.approx(expected)
            assert each.seconds is None or each.seconds >= 0

    each_example(example)
