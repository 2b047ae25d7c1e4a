from __future__ import annotations

from hpctrain.execute.write_slots import WriteSlots


def test_as_many_as_the_limit_write_and_the_others_in_the_order_in_which_they_asked():
    slots = WriteSlots(2)
    for rank in (3, 0, 2, 1):
        slots.receive(rank, 1, wanted=True)
    assert slots.grant() == {3: 1, 0: 1}
    assert slots.grant() == {}
    slots.receive(0, 1, wanted=False)
    assert slots.grant() == {2: 1}
    slots.receive(3, 1, wanted=False)
    slots.receive(2, 1, wanted=False)
    slots.receive(3, 2, wanted=True)
    assert slots.grant() == {1: 1, 3: 2}


def test_who_waits_no_longer_is_passed_over():
    slots = WriteSlots(1)
    for rank in range(3):
        slots.receive(rank, 1, wanted=True)
    assert slots.grant() == {0: 1}
    slots.receive(1, 1, wanted=False)
    slots.receive(0, 1, wanted=False)
    assert slots.grant() == {2: 1}


def test_without_a_limit_all_write():
    slots = WriteSlots(None)
    for rank in range(3):
        slots.receive(rank, 7, wanted=True)
    assert slots.grant() == dict.fromkeys(range(3), 7)
