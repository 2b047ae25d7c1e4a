from __future__ import annotations

from typing import Any

from hpctrain.control.beats import Beats, decode_beats
from hpctrain.control.event_loop import EventLoop
from hpctrain.control.wire import decode_frame


def test_signs_of_life_go_on_when_all_senders_have_given_one():
    loop, sent = EventLoop(), list[dict[int, list[Any]]]()
    beats = Beats(
        loop, send=lambda raw: sent.append(decode_beats(decode_frame(raw))), num_senders=lambda: 2
    )
    beats.note(4, {"attempt": 1, "use": {"cpus": 2}}, 7)
    # One that an agent sends by itself does not hide the figures of the one before.
    beats.note(4, {"attempt": 1}, 8)
    assert sent == []
    beats.note(5, {"attempt": 1}, 0)
    assert sent == [{4: [1, {"cpus": 2}, 8], 5: [1, None, 0]}]
    loop.close()


def test_signs_of_life_do_not_wait_long_for_those_of_others():
    loop, sent = EventLoop(), list[bytes]()
    beats = Beats(loop, send=sent.append, num_senders=lambda: 2)
    beats.note(0, {"attempt": 1}, 0)
    while not sent:
        loop.turn(10.0)
    other = Beats(loop, send=sent.append, num_senders=lambda: 1)
    other.take(decode_frame(sent[0]))
    assert [decode_beats(decode_frame(raw)) for raw in sent] == [{0: [1, None, 0]}] * 2
    loop.close()
