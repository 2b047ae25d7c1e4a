"""Whatever happens to a run, it ends with the loss trace and the weights of the undisturbed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from hpctrain.testing.chaos.experiment import Comparison, Experiment
from hpctrain.testing.chaos.fault import Fault, Point
from hpctrain.testing.chaos.kinds import KINDS

Survive = Callable[..., Comparison]
Drawn = Callable[..., list[Fault]]

NUM_COMMIT_POINTS = 10


def further(values: Iterable[Any]) -> list[Any]:
    """Mark cases that CI has of the same kind elsewhere, here or in another folder."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


LOCAL = [
    "kill-rank",
    "torn-write",
    "bit-flip",
    "truncate",
    "full-disk",
    "brief-full-disk",
    "kill-executor",
]
SEEN_ELSEWHERE = (
    "bit-flip truncate kill-executor kill-supervisor preempt power-off restart-controller"
)
CLUSTER = ["power-off-executor", "cut-network", *further(SEEN_ELSEWHERE.split())]
WITH_SPARE_NODE = ["power-off-executor", *further(["power-off", "suspend"])]
OF_STATES = [
    "kill-commit",
    "torn-write",
    "io-error",
    *further(["bit-flip", "kill-rank", "truncate", "no-space"]),
]
TWO_AT_ONCE = [
    ("kill-commit", "bit-flip"),
    *further([("kill-rank", "kill-executor")]),
    ("restart-controller", "kill-rank"),
]


@pytest.mark.mpi
@pytest.mark.parametrize("kind", LOCAL)
def test_a_run_on_this_machine_survives(
    local: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    (fault,) = drawn(local, kind)
    comparison = survive(local, fault)
    # There the executor is the process of the user's script.
    struck = fault.kind == "kill-executor" or fault.point.role == "executor"
    assert comparison.result.starts == (2 if struck else 1)


@pytest.mark.slurm
@pytest.mark.parametrize("kind", CLUSTER)
def test_a_job_survives(on_cluster: Experiment, survive: Survive, drawn: Drawn, kind: str) -> None:
    comparison = survive(on_cluster, *drawn(on_cluster, kind))
    assert comparison.result.starts == 1, "nobody had to start it again"


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.parametrize("kind", ["requeue", "requeue-hold"])
def test_a_job_on_one_node_survives(
    on_one_node: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    comparison = survive(on_one_node, *drawn(on_one_node, kind))
    assert comparison.result.starts == 1
    assert comparison.result.attempts == 2


@pytest.mark.slurm
@pytest.mark.parametrize("kind", WITH_SPARE_NODE)
def test_a_job_with_a_spare_node_survives(
    with_spare_node: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    comparison = survive(with_spare_node, *drawn(with_spare_node, kind))
    assert comparison.result.starts == 1


@pytest.mark.long
@pytest.mark.slurm
def test_a_job_that_is_warned_of_its_end_twice_leaves_and_goes_on(
    paced: Experiment, survive: Survive
) -> None:
    kind = KINDS["stop-signal"]
    warnings = [kind.at(at_report(rank, number)) for rank, number in ((1, 3), (2, 8))]
    comparison = survive(paced, *warnings)
    assert comparison.result.starts == 1
    (run,) = comparison.result.outcome.values()
    first, *resumed = run.first_reports
    assert first == 0
    # It saved where it left, and not at its next turn.
    assert [number >= least for number, least in zip(resumed, (3, 8), strict=True)] == [True, True]


@pytest.mark.slurm
@pytest.mark.parametrize("number", [0, 5, 9, *further([1, 2, 3, 4, 6, 7, 8])])
def test_a_job_survives_a_kill_at_each_stage_of_a_commit(
    on_cluster: Experiment, survive: Survive, number: int
) -> None:
    points = stages_of_second_commit(on_cluster)
    chosen = points[round(number * (len(points) - 1) / (NUM_COMMIT_POINTS - 1))]
    comparison = survive(on_cluster, KINDS["kill-commit"].at(chosen))
    assert comparison.result.starts == 1
    assert comparison.result.attempts == 2


@pytest.mark.slurm
@pytest.mark.parametrize(("moment", "resumed_from"), [("before", 3), ("after", 6)])
def test_a_checkpoint_counts_from_the_rename_that_makes_it_visible(
    on_cluster: Experiment, survive: Survive, moment: str, resumed_from: int
) -> None:
    (point,) = [
        point
        for point in stages_of_second_commit(on_cluster)
        if point.path.endswith("/checkpoints/000006") and point.moment == moment
        if point.op == "rename"
    ]
    comparison = survive(on_cluster, KINDS["kill-commit"].at(point))
    (run,) = comparison.result.outcome.values()
    assert run.first_reports == [0, resumed_from]


@pytest.mark.mpi
@pytest.mark.parametrize("number", [0, 1, *further(range(2, 12))])
def test_a_run_on_this_machine_survives_a_kill_anywhere(
    local: Experiment, survive: Survive, drawn: Drawn, number: int
) -> None:
    kind = ("kill-rank", "kill-commit")[number % 2]
    survive(local, *drawn(local, kind, salt=number))


@pytest.mark.slurm
@pytest.mark.parametrize("number", [0, 1, *further(range(2, 18))])
def test_a_job_survives_a_kill_anywhere(
    on_cluster: Experiment, survive: Survive, drawn: Drawn, number: int
) -> None:
    kind = ("kill-rank", "kill-commit")[number % 2]
    comparison = survive(on_cluster, *drawn(on_cluster, kind, salt=number))
    assert comparison.result.starts == 1


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["io-error", "no-space"])
def test_a_failing_call_is_never_an_error_that_nobody_sees(
    local: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    survive(local, *drawn(local, kind))


@pytest.mark.mpi
def test_a_rank_that_makes_no_progress_is_given_up(
    watched: Experiment, survive: Survive, drawn: Drawn
) -> None:
    (fault,) = drawn(watched, "stop-rank")
    comparison = survive(watched, fault)
    assert comparison.result.starts == 1
    (run,) = comparison.result.outcome.values()
    causes = [event["cause"] for event in run.events if event["event"] == "attempt-ended"]
    number = fault.point.role.removeprefix("rank-")
    assert f"rank {number} of 3" in causes[0]
    assert "hangs" in causes[0]


@pytest.mark.long
@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["kill-rank", "kill-commit", "truncate"])
def test_a_torch_run_survives(
    with_torch: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    survive(with_torch, *drawn(with_torch, kind))


@pytest.mark.mpi
@pytest.mark.parametrize("kind", OF_STATES)
def test_a_torch_run_that_reports_its_state_survives(
    with_states: Experiment, survive: Survive, drawn: Drawn, kind: str
) -> None:
    survive(with_states, *drawn(with_states, kind))


@pytest.mark.slurm
@pytest.mark.parametrize("kinds", TWO_AT_ONCE, ids="-and-".join)
def test_a_job_survives_two_at_once(
    on_cluster: Experiment, survive: Survive, drawn: Drawn, kinds: tuple[str, str]
) -> None:
    # The second comes in the last report, which is made whatever the first has done before.
    last = max(point_number(p) for p in KINDS["kill-rank"].points(on_cluster.undisturbed.trace))
    first, second = next(
        pair
        for pair in (drawn(on_cluster, *kinds, salt=attempt) for attempt in range(100))
        if not pair[0].point.path.endswith(f"report-{last}")
        and f"{last:06d}" not in pair[0].point.path
    )
    survive(on_cluster, first, KINDS[second.kind].at(at_report(1, last)))


def stages_of_second_commit(experiment: Experiment) -> list[Point]:
    """Return every fsync and rename of the checkpoint of report 6, before and after, in order."""
    points = KINDS["kill-commit"].points(experiment.undisturbed.trace)
    renamed = [p.path.endswith("/checkpoints/000003") and p.op == "rename" for p in points]
    begin = len(renamed) - renamed[::-1].index(True)
    visible = [p.path.endswith("/checkpoints/000006") and p.op == "rename" for p in points]
    end = len(visible) - visible[::-1].index(True)
    return [point for point in points[begin:end] if point.op in ("fsync", "rename")]


def at_report(rank: int, number: int) -> Point:
    return Point(role=f"rank-{rank}", op="report", path=f"report-{number}", moment="before")


def point_number(point: Point) -> int:
    return int(point.path.removeprefix("report-"))
