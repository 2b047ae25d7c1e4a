"""Python's lock is handed over soon while blocks are moved, and as before afterwards."""

from __future__ import annotations

import sys

from hpctrain.bulk.handover import prompt_handover


def test_the_interval_is_short_until_the_last_user_is_done() -> None:
    before = sys.getswitchinterval()
    with prompt_handover():
        short = sys.getswitchinterval()
        with prompt_handover():
            assert sys.getswitchinterval() == short < before
        with prompt_handover(awaited=True):
            assert sys.getswitchinterval() < short
        assert sys.getswitchinterval() == short
    assert sys.getswitchinterval() == before
