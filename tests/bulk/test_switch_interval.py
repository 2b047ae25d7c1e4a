"""Python's lock is handed over soon while blocks are moved, and as before afterwards."""

from __future__ import annotations

import sys

from hpctrain.bulk.switch_interval import short_switch_interval


def test_the_interval_is_short_until_the_last_user_is_done() -> None:
    before = sys.getswitchinterval()
    with short_switch_interval():
        short = sys.getswitchinterval()
        with short_switch_interval():
            assert sys.getswitchinterval() == short < before
        with short_switch_interval(awaited=True):
            assert sys.getswitchinterval() < short
        assert sys.getswitchinterval() == short
    assert sys.getswitchinterval() == before
