"""Where the main thread is, as a trace."""

from __future__ import annotations

import threading
import time
from typing import Any

from hpctrain.worker.sampler import Sampler, to_events

F, G, H = ("f", "a.py:1"), ("g", "a.py:2"), ("h", "b.py:3")


def spans(events: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return sorted((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events)


def test_calls_that_stay_are_one_event_and_calls_that_come_again_are_two() -> None:
    samples = [(0.0, [F, G]), (1.0, [F, H]), (2.0, [F, G]), (3.0, [F, G, H])]
    assert spans(to_events(samples, end=4.0)) == [
        ("f", 0.0, 4.0),
        ("g", 0.0, 1.0),
        ("g", 2.0, 4.0),
        ("h", 1.0, 2.0),
        ("h", 3.0, 4.0),
    ]
    assert to_events([], end=1.0) == []


def test_an_event_is_within_the_event_of_its_caller() -> None:
    events = to_events([(0.0, [F, G, H]), (1.0, [F]), (2.0, [H])], end=3.0)
    assert spans(events) == [("f", 0.0, 2.0), ("g", 0.0, 1.0), ("h", 0.0, 1.0), ("h", 2.0, 3.0)]


def test_the_main_thread_of_this_process_is_sampled() -> None:
    got: list[list[dict[str, Any]]] = []
    began = time.time()
    sampler = Sampler(0.3, got.append)
    sampler.start()
    while sampler.is_alive():
        busy_for_a_moment()
    (events,) = got
    names = {event["name"] for event in events}
    assert "busy_for_a_moment" in names
    assert not any("Sampler" in name for name in names), "another thread"
    assert all(began - 1 < event["ts"] / 1e6 < time.time() for event in events)
    assert threading.current_thread() is threading.main_thread()


def busy_for_a_moment() -> None:
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        sum(range(100))
