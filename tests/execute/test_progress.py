from __future__ import annotations

import pytest

from hpctrain.control.wire import Frame
from hpctrain.execute.progress import Progress

LIMITS = {"training_s": 10.0, "others_s": 20.0}


@pytest.fixture
def progress() -> Progress:
    return Progress(world_size=3, first_report=5, now=0.0)


def say(progress: Progress, now: float, op: str, *ranks: int, **details: object) -> None:
    # Frames are read several times a second; whoever reads them says so.
    for moment in range(int(progress._time._looked_at), int(now) + 1):
        progress.listen(float(moment))
    progress.listen(now)
    for rank in ranks:
        progress.feed(Frame({"op": op, "rank": rank, **details}, b"", b""))


def test_each_kind_of_progress_counts_from_when_it_was_heard(progress: Progress) -> None:
    say(progress, 1.0, "phase", 0, 1, 2, phase="training")
    say(progress, 8.0, "report", 0)
    say(progress, 9.0, "heartbeat", 1)
    say(progress, 11.5, "none")
    assert progress.stalled(**LIMITS) == [2]
    say(progress, 18.5, "none")
    assert progress.stalled(**LIMITS) == [0, 2]
    assert progress.describe(0) == "in phase training, after report 6"


def test_phases_before_and_after_training_have_a_time_of_their_own(progress: Progress) -> None:
    say(progress, 1.0, "phase", 0, phase="backend")
    say(progress, 1.0, "phase", 1, phase="checkpoint")
    say(progress, 1.0, "done", 2)
    say(progress, 12.0, "none")
    assert progress.stalled(**LIMITS) == [1]
    say(progress, 22.0, "none")
    assert progress.stalled(**LIMITS) == [0, 1]
    assert progress.describe(0) == "in phase backend"
    assert progress.describe(2) == "returned after report 5"


def test_time_in_which_nobody_listened_is_not_held_against_ranks(progress: Progress) -> None:
    say(progress, 1.0, "phase", 0, 1, 2, phase="training")
    progress.listen(100.0)
    assert progress.stalled(**LIMITS) == []
    say(progress, 111.0, "none")
    assert progress.stalled(**LIMITS) == [0, 1, 2]


def test_the_furthest_behind_have_the_earliest_phase_and_the_fewest_reports(
    progress: Progress,
) -> None:
    say(progress, 1.0, "phase", 0, 1, 2, phase="training")
    assert progress.furthest_behind([0, 1, 2]) == [0, 1, 2]
    say(progress, 1.0, "report", 0, 1)
    assert progress.furthest_behind([0, 1, 2]) == [2]
    say(progress, 1.0, "phase", 1, phase="backend")
    assert progress.furthest_behind([0, 1, 2]) == [1]
