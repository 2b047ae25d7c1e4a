from __future__ import annotations

import json
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.rundir.staging import StagedFile, StagedPart
from hpctrain.worker.failure import RankFailure


def frame(op: str, rank: int, body: bytes = b"", **details: Any) -> Frame:
    return Frame({"op": op, "rank": rank, **details}, body, b"")


def returned(tracker: AttemptTracker, rank: int, *, reports: int, collectives: int = 0) -> None:
    tracker.feed(frame("returned", rank, reports=reports, collectives=collectives))


def report(tracker: AttemptTracker, rank: int, **metrics: Any) -> list[ReportRound]:
    line = json.dumps({"metrics": metrics}).encode() + b"\n"
    return tracker.feed(frame("report", rank, line))


def announce(tracker: AttemptTracker, rank: int) -> list[ReportRound]:
    line = json.dumps({"metrics": {}}).encode() + b"\n"
    return tracker.feed(frame("report", rank, line, part_follows=True))


def part(tracker: AttemptTracker, rank: int, number: int, *names: str) -> list[ReportRound]:
    return tracker.feed(frame("part", rank, part_of(*names).to_bytes(), report=number))


def part_of(*names: str) -> StagedPart:
    return StagedPart(files=tuple(StagedFile(name, 1, "digest") for name in names))


def stage(tracker: AttemptTracker, rank: int, number: int, *names: str) -> list[ReportRound]:
    return announce(tracker, rank) + part(tracker, rank, number, *names)


def failed(rank: int, message: str = "") -> Frame:
    failure = RankFailure(
        rank=rank,
        hostname="n1",
        pid=1,
        report=0,
        phase="training",
        type="ValueError",
        message=message,
        traceback="",
        time=0.0,
    )
    return frame("failed", rank, json.dumps(failure.to_json()).encode())


def test_a_report_is_complete_when_every_rank_has_made_it():
    tracker = AttemptTracker(world_size=3, first_report=0)
    assert report(tracker, 2, loss=2) == []
    assert report(tracker, 0, loss=0) == []
    assert tracker.reports == 0
    (round_,) = report(tracker, 1, loss=1)
    assert tracker.reports == round_.report == 1
    assert [round_.metrics(rank)["loss"] for rank in range(3)] == [0, 1, 2]
    assert round_.parts == {}


def test_a_part_of_a_checkpoint_whose_report_was_not_sent_is_a_failure_of_its_rank():
    tracker = AttemptTracker(world_size=2, first_report=0)
    report(tracker, 1)
    announce(tracker, 0)
    assert part(tracker, 0, 2, "model.bin") == []
    assert list(tracker.failures) == [0]
    assert "the checkpoint of report 2, and had sent 1 reports" in tracker.failures[0].message


def test_a_slow_rank_completes_several_reports_one_after_the_other():
    tracker = AttemptTracker(world_size=2, first_report=13)
    for _ in range(3):
        assert report(tracker, 0) == []
    numbers = [round_.report for _ in range(3) for round_ in report(tracker, 1)]
    assert numbers == [14, 15, 16]
    assert tracker.reports == 16


def test_the_parts_of_a_checkpoint_come_with_its_report_though_not_every_rank_gave_one():
    tracker = AttemptTracker(world_size=2, first_report=0)
    report(tracker, 0)
    assert stage(tracker, 0, 2, "model.bin") == []
    (first,) = report(tracker, 1)
    (second,) = report(tracker, 1)
    assert first.parts == {}
    assert second.parts == {0: part_of("model.bin")}


def test_the_run_is_in_the_earliest_phase_of_any_rank():
    tracker = AttemptTracker(world_size=2, first_report=0)
    assert tracker.phase == "mpi"
    tracker.feed(frame("phase", 0, phase="training"))
    assert tracker.phase == "mpi"
    tracker.feed(frame("phase", 1, phase="backend"))
    assert tracker.phase == "backend"
    tracker.feed(frame("done", 0))
    tracker.feed(frame("done", 1))
    assert tracker.phase == "done"


def test_an_attempt_is_done_when_every_rank_has_returned_and_has_rank_0s_value():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("done", 1, b"of rank 1"))
    assert not tracker.is_done
    tracker.feed(frame("done", 0, b"of rank 0"))
    assert tracker.is_done
    assert tracker.return_value == b"of rank 0"
    assert not tracker.has_failed


def test_a_connection_that_ends_after_the_rank_was_done_is_no_failure():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("done", 1))
    tracker.feed(frame("lost", 1))
    assert not tracker.has_failed
    tracker.feed(frame("lost", 0, agent=True))
    assert tracker.has_failed
    assert tracker.lost == {0: True}


def test_a_rank_that_loses_its_connection_with_another_has_not_failed_and_says_no_more():
    tracker = AttemptTracker(world_size=3, first_report=0)
    for op, rank, details in (
        ("done", 0, {}),
        ("lost", 1, {"agent": False}),
        ("cut-off", 2, {"relay": 1}),
    ):
        tracker.feed(frame(op, rank, **details))
    assert (tracker.lost, tracker.cut_off) == ({1: False}, {2: 1})
    assert tracker.num_ended == 3


def test_failures_are_kept_in_the_order_in_which_they_became_known():
    tracker = AttemptTracker(world_size=3, first_report=0)
    tracker.feed(failed(2, "first"))
    tracker.feed(failed(0, "second"))
    tracker.feed(failed(2, "again"))
    assert [failure.message for failure in tracker.failures.values()] == ["first", "second"]
    assert list(tracker.failures) == [2, 0]


def test_all_ranks_stop_at_the_first_report_that_none_has_begun():
    tracker = AttemptTracker(world_size=3, first_report=0)
    assert tracker.stop_report is None
    tracker.feed(frame("frozen", 0, report=4))
    tracker.feed(frame("frozen", 2, report=6))
    assert tracker.stop_report is None
    tracker.feed(frame("frozen", 1, report=5))
    assert tracker.stop_report == 7


def test_a_rank_that_has_returned_already_need_not_answer():
    tracker = AttemptTracker(world_size=2, first_report=0)
    returned(tracker, 1, reports=6)
    tracker.feed(frame("frozen", 0, report=5))
    assert tracker.stop_report == 7


def test_signals_that_ranks_got_are_kept():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("signal", 1, name="SIGUSR2"))
    assert tracker.signals == ["SIGUSR2"]


def test_ranks_that_reported_unequally_often_are_named_once_all_have_left():
    tracker = AttemptTracker(world_size=2, first_report=10)
    for _ in range(3):
        report(tracker, 0)
    report(tracker, 1)
    returned(tracker, 1, reports=11)
    tracker.feed(frame("done", 1))
    assert tracker.unmatched_calls() is None
    returned(tracker, 0, reports=13)
    tracker.feed(frame("done", 0))
    complaint = tracker.unmatched_calls()
    assert complaint is not None
    assert complaint.startswith("rank 1 returned after 1 reports, but rank 0 made 3. Every rank")


def test_a_rank_that_waits_for_a_checkpoint_of_one_that_has_left_is_noticed_at_once():
    tracker = AttemptTracker(world_size=2, first_report=0)
    stage(tracker, 0, 1, "model.bin")
    assert tracker.unmatched_calls() is None
    returned(tracker, 1, reports=0)
    complaint = tracker.unmatched_calls()
    assert complaint is not None
    assert "rank 1 returned after 0 reports, but rank 0 made 1." in complaint


def test_a_rank_that_waits_for_a_tuner_is_noticed_at_once_where_another_has_left():
    tracker = AttemptTracker(world_size=2, first_report=0)
    for rank in (0, 1):
        report(tracker, rank)
        tracker.feed(frame("awaits", rank, report=1))
    returned(tracker, 1, reports=1)
    assert tracker.unmatched_calls() is None
    # The tuner decides on what all ranks have reported.
    report(tracker, 0)
    tracker.feed(frame("awaits", 0, report=2))
    complaint = tracker.unmatched_calls()
    assert complaint is not None
    assert complaint.startswith("rank 1 returned after 1 reports, but rank 0 made 2. Every rank")


def test_ranks_that_reported_equally_often_are_no_cause_for_complaint():
    tracker = AttemptTracker(world_size=2, first_report=0)
    for rank in (0, 1):
        stage(tracker, rank, 1, "model.bin")
        returned(tracker, rank, reports=1)
        tracker.feed(frame("done", rank))
    assert tracker.unmatched_calls() is None


def test_a_part_that_follows_holds_its_report_and_those_after_it():
    tracker = AttemptTracker(world_size=2, first_report=0)
    announce(tracker, 0)
    assert report(tracker, 1) == []
    assert report(tracker, 0) == report(tracker, 1) == []
    # All ranks have made two reports; the first is not whole yet.
    assert tracker.reports == 2
    first, second = part(tracker, 0, 1, "model.bin")
    assert (first.report, first.parts) == (1, {0: part_of("model.bin")})
    assert (second.report, second.parts) == (2, {})


def test_parts_of_one_rank_may_follow_while_those_of_another_are_there():
    tracker = AttemptTracker(world_size=2, first_report=0)
    announce(tracker, 0)
    assert stage(tracker, 1, 1, "b") == []
    (round_,) = part(tracker, 0, 1, "a")
    assert round_.parts == {0: part_of("a"), 1: part_of("b")}


def test_a_rank_that_left_with_fewer_reports_is_named_while_a_part_is_under_way():
    tracker = AttemptTracker(world_size=2, first_report=0)
    announce(tracker, 0)
    returned(tracker, 1, reports=0)
    assert "rank 1 returned after 0 reports, but rank 0 made 1" in str(tracker.unmatched_calls())


def test_a_rank_that_waits_for_one_that_has_left_is_noticed():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("waits", 0, collective=2, stage="load_state()"))
    assert tracker.unmatched_calls() is None
    returned(tracker, 1, reports=0, collectives=1)
    complaint = tracker.unmatched_calls()
    assert complaint is not None
    assert "rank 1 returned, but rank 0 waits for all ranks in load_state()." in complaint


def test_a_wait_that_ended_since_is_no_cause_for_complaint():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("waits", 0, collective=2, stage="load_state()"))
    returned(tracker, 1, reports=0, collectives=2)
    assert tracker.unmatched_calls() is None


def test_a_wait_that_was_given_up_is_no_cause_for_complaint():
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.feed(frame("waits", 0, collective=2, stage="barrier()"))
    tracker.feed(frame("waits", 0, collective=0, stage="barrier()"))
    returned(tracker, 1, reports=0, collectives=1)
    assert tracker.unmatched_calls() is None


def test_ranks_that_have_returned_may_wait_for_each_other():
    tracker = AttemptTracker(world_size=2, first_report=0)
    returned(tracker, 0, reports=0, collectives=1)
    tracker.feed(frame("waits", 0, collective=2, stage="barrier()"))
    assert tracker.unmatched_calls() is None
    returned(tracker, 1, reports=0, collectives=1)
    assert tracker.unmatched_calls() is None
