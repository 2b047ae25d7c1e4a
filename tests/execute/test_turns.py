from __future__ import annotations

from hpctrain.execute.turns import Turns


def test_as_many_as_the_limit_write_and_the_others_in_the_order_in_which_they_asked():
    turns = Turns(2)
    for rank in (3, 0, 2, 1):
        turns.hear(rank, 1, wanted=True)
    assert turns.grant() == {3: 1, 0: 1}
    assert turns.grant() == {}
    turns.hear(0, 1, wanted=False)
    assert turns.grant() == {2: 1}
    turns.hear(3, 1, wanted=False)
    turns.hear(2, 1, wanted=False)
    turns.hear(3, 2, wanted=True)
    assert turns.grant() == {1: 1, 3: 2}


def test_who_waits_no_longer_is_passed_over():
    turns = Turns(1)
    for rank in range(3):
        turns.hear(rank, 1, wanted=True)
    assert turns.grant() == {0: 1}
    turns.hear(1, 1, wanted=False)
    turns.hear(0, 1, wanted=False)
    assert turns.grant() == {2: 1}


def test_without_a_limit_all_write():
    turns = Turns(None)
    for rank in range(3):
        turns.hear(rank, 7, wanted=True)
    assert turns.grant() == dict.fromkeys(range(3), 7)
