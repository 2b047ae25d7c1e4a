"""Who waits for others, by stacks alone: MPI, XGBoost and LightGBM record no collectives."""

from __future__ import annotations

import json

from hpctrain.control.wire import Frame
from hpctrain.execute.progress import Progress
from hpctrain.execute.waits import explain_waits
from hpctrain.worker.group_record import Call, GroupRecord

COMPUTES = '  File "/x/train.py", line 88 in load\n  File "/x/train.py", line 3 in train'
WAITS = '  File "/torch/lib.py", line 9 in all_reduce\n  File "/x/train.py", line 12 in step'
NATIVE = 'Thread 7 (active): "MainThread"\n    0x7f98 (libmpi.so.12)\n    step (train.py:12)\n'


def make_progress(size: int = 4) -> Progress:
    progress = Progress(world_size=size, first_report=0, now=0.0)
    for rank in range(size):
        feed(progress, "phase", rank, phase="training")
    return progress


def feed(progress: Progress, op: str, rank: int, body: str = "", **details: object) -> None:
    progress.feed(Frame({"op": op, "rank": rank, **details}, body.encode(), b""))


def test_those_that_wait_and_those_that_do_not_are_told_apart() -> None:
    progress = make_progress()
    for rank in (0, 2):
        feed(progress, "stacks", rank, WAITS)
    # Its Python stack says nothing; seen from outside it is in MPI.
    feed(progress, "stacks", 3, '  File "/x/train.py", line 12 in step')
    feed(progress, "examined", 3, NATIVE, reason="")
    feed(progress, "stacks", 1, COMPUTES)
    found = explain_waits(progress)
    assert found.missing == ()
    assert found.lines == (
        "ranks 0,2 wait for other ranks: lib.py:9, in all_reduce",
        "rank 3 waits for other ranks: train.py:12, in step",
        "rank 1 does not wait for others: train.py:88, in load",
    )


def test_nothing_is_said_where_all_wait_or_none_does() -> None:
    for stack in (WAITS, COMPUTES):
        progress = make_progress()
        for rank in range(4):
            feed(progress, "stacks", rank, stack)
        assert explain_waits(progress).lines == ()


def test_what_is_recorded_says_more_than_stacks_and_a_rank_owes_it_until_it_has_come() -> None:
    progress = make_progress(2)
    feed(progress, "stacks", 0, WAITS, record_follows=True)
    feed(progress, "stacks", 1, COMPUTES)
    assert [progress.has_answered(rank) for rank in range(2)] == [False, True]
    pending = Call(op="barrier", number=3)
    record = GroupRecord(name="0", description="", ranks=(0, 1), calls=3, pending=pending)
    feed(progress, "collectives", 0, json.dumps([record.to_json()]))
    feed(progress, "collectives", 1, json.dumps([]))
    assert progress.has_answered(0)
    found = explain_waits(progress)
    assert found.missing == (1,)
    assert found.lines == (
        "rank 0 waits in barrier #3 (process group 0); rank 1 never called it: train.py:88, in "
        "load",
    )
    feed(progress, "phase", 1, phase="shutdown")
    assert explain_waits(progress).lines[0].endswith("never called it: returned after report 0")
    progress.ask()
    assert explain_waits(progress).lines == ()


def test_a_rank_whose_collective_failed_waited_in_it() -> None:
    progress = make_progress(2)
    feed(progress, "stacks", 1, COMPUTES)
    pending = Call(op="barrier", number=3)
    failed = GroupRecord(name="0", description="dp", ranks=(0, 1), calls=3, pending=pending)
    feed(progress, "collectives", 1, json.dumps([]))
    assert explain_waits(progress, {0: [failed]}).missing == (1,)
