"""Which collective ranks wait in, and who has not called it."""

from __future__ import annotations

import pytest

from hpctrain.execute.pending_calls import Explanation, explain_pending_calls
from hpctrain.worker.group_record import Call, GroupRecord

SUM = Call(op="all_reduce", number=4, shapes=((2, 3),), dtypes=("float",))
LATER = Call(op="all_gather", number=7, shapes=((5,),), dtypes=("bfloat16",))


def group(
    calls: int, pending: Call | None = None, *, name: str = "1", of: tuple[int, ...] = (0, 1, 2)
) -> GroupRecord:
    return GroupRecord(name=name, description=f"g{name}", ranks=of, calls=calls, pending=pending)


def explain(*records: list[GroupRecord] | None, where: dict[int, str] | None = None) -> Explanation:
    known = {rank: record for rank, record in enumerate(records) if record is not None}
    return explain_pending_calls(known, where or {})


def test_who_never_called_it_is_named_with_its_line() -> None:
    found = explain([group(4, SUM)], [group(3)], [group(4, SUM)], where={1: "train.py:88, in load"})
    assert found == Explanation(
        (
            "ranks 0,2 wait in all_reduce #4 (float [2, 3], process group g1); rank 1 never called "
            "it: train.py:88, in load",
        ),
        (1,),
    )


def test_a_member_without_any_call_in_the_group_never_called_it_and_others_are_no_members() -> None:
    found = explain([group(1, SUM, of=(0, 2))], [group(9, name="0")], [group(3, of=(0, 2))])
    assert found.missing == (2,)
    found = explain([group(4, SUM)], [], [group(4, SUM)])
    assert found.missing == (1,)


def test_ranks_that_are_in_other_lines_are_told_apart_and_many_ranks_are_short() -> None:
    records = {rank: [group(4, SUM, of=())] for rank in range(500)}
    records |= {7: [group(3, of=())], 8: [group(3, of=())], 9: [group(2, of=())]}
    where = {7: "a.py:1, in f", 8: "a.py:1, in f", 9: "b.py:2, in g"}
    (line,) = explain_pending_calls(records, where).lines
    assert line.startswith("ranks 0-6,10-499 wait in all_reduce #4 ")
    assert line.endswith(
        "; ranks 7-8 never called it: a.py:1, in f; rank 9 never called it: b.py:2, in g"
    )


def test_another_order_of_groups_is_a_circle_without_a_missing_rank() -> None:
    tp = Call(op="broadcast", number=1)
    found = explain(
        [group(3), group(1, tp, name="2")],
        [group(4, SUM)],
        [group(4, SUM), group(0, name="2")],
        where={0: "x.py:1, in f", 1: "x.py:2, in g", 2: "x.py:2, in g"},
    )
    assert found.missing == ()
    assert found.lines == (
        "ranks 1-2 wait in all_reduce #4 (float [2, 3], process group g1); rank 0 waits in "
        "broadcast #1 (process group g2) instead: x.py:1, in f",
        "rank 0 waits in broadcast #1 (process group g2); ranks 1-2 wait in all_reduce #4 (float "
        "[2, 3], process group g1) instead: x.py:2, in g",
        "they wait for each other: every rank must call the collectives of its groups in the same "
        "order",
    )


def test_the_cause_of_a_chain_comes_first() -> None:
    # 0 waits for 1, which waits for 2, which computes.
    found = explain(
        [group(4, SUM, of=(0, 1))],
        [group(3, of=(0, 1)), group(7, LATER, name="2", of=(1, 2))],
        [group(6, name="2", of=(1, 2))],
        where={2: "x.py:1, in f"},
    )
    assert found.missing == (2,)
    assert [line.partition(";")[0] for line in found.lines] == [
        "rank 1 waits in all_gather #7 (bfloat16 [5], process group g2)",
        "rank 0 waits in all_reduce #4 (float [2, 3], process group g1)",
    ]


@pytest.mark.parametrize(
    "other",
    [
        Call(op="all_reduce", number=4, shapes=((2, 4),), dtypes=("float",)),
        Call(op="all_reduce", number=4, shapes=((2, 3),), dtypes=("double",)),
        Call(op="broadcast", number=4, shapes=((2, 3),), dtypes=("float",)),
    ],
)
def test_calls_that_differ_are_told_once(other: Call) -> None:
    found = explain([group(4, SUM)], [group(4, other)], [group(4, SUM)])
    assert found.missing == ()
    (line,) = found.lines
    assert line.startswith(
        "ranks 0,2 call all_reduce #4 (float [2, 3], process group g1), but rank 1"
    )
    assert line.endswith("same calls with the same shapes in the same order")


def test_where_all_have_come_it_is_the_network_or_a_device() -> None:
    (line,) = explain([group(4, SUM)], [group(5, SUM)], [group(4, SUM)]).lines
    assert line.startswith("ranks 0-2 wait in all_reduce #4")
    assert "every rank of the group has called it: look at the network" in line


def test_a_rank_that_did_not_answer_is_no_rank_that_never_called() -> None:
    found = explain([group(4, SUM)], None, [group(4, SUM)])
    assert found.missing == ()
    assert found.lines[0].endswith("; rank 1 does not answer")


def test_a_receive_is_shown_without_a_verdict() -> None:
    receive = Call(op="recv 0<-1", number=2, is_p2p=True)
    assert explain([group(3, receive)], [group(3)], [group(3)]) == Explanation(
        ("rank 0 waits in recv 0<-1 #2 (process group g1)",)
    )


def test_nothing_pending_and_nothing_recorded_are_no_explanation() -> None:
    assert explain([group(3)], [group(3)], [group(3)]) == Explanation(())
    assert explain_pending_calls({}, {0: "x"}) == Explanation(())


def test_many_shapes_are_counted_and_a_record_survives_json() -> None:
    import json

    many = Call(op="all_gather", number=1, shapes=((1,), (2,), (3,)), dtypes=("int",) * 3)
    (line,) = explain([group(1, many)], None, None).lines
    assert "(int [1], int [2], 1 more, process group g1)" in line
    for record in (group(1, many), group(0)):
        assert GroupRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
