"""Where the main thread of this process is, a hundred times a second, as a trace for Perfetto."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from hpctrain.own_time import ANY_GAP_S, Deadline

INTERVAL_S = 0.01
_Call = tuple[str, str]
"""Name of a function, and where it is."""


class Sampler(threading.Thread):
    """Samples the main thread for some seconds, then gives the trace away.

    It sees Python's functions only, and none while a compiled one holds Python's lock (GIL): a
    library that waits in MPI, or boosts, lets it go.

    Parameters
    ----------
    seconds
        How long.
    finish
        Gets the events, of the Trace Event Format.
    """

    def __init__(self, seconds: float, finish: Callable[[list[dict[str, Any]]], None]) -> None:
        super().__init__(name="hpctrain-sampler", daemon=True)
        self._seconds = seconds
        self._finish = finish

    def run(self) -> None:
        """Sample. Not collective."""
        main = threading.main_thread().ident
        samples: list[tuple[float, list[_Call]]] = []
        deadline = Deadline(self._seconds, longest_gap_s=ANY_GAP_S)
        while not deadline.is_over:
            frame = sys._current_frames().get(main or 0)
            samples.append((time.time(), _calls(frame)))
            del frame
            time.sleep(INTERVAL_S)
        self._finish(to_events(samples, end=time.time()))


def to_events(
    samples: Sequence[tuple[float, Sequence[_Call]]], *, end: float
) -> list[dict[str, Any]]:
    """Return one event for each call that consecutive samples have in common. Pure.

    Parameters
    ----------
    samples
        Seconds since the epoch, and the calls of the thread, the outermost first.
    end
        Of the last sample.

    Examples
    --------
    >>> f, g = ("f", "a.py:1"), ("g", "a.py:2")
    >>> events = to_events([(1.0, [f]), (2.0, [f, g]), (3.0, [f])], end=4.0)
    >>> [(e["name"], e["ts"], e["dur"]) for e in events]
    [('g', 2000000.0, 1000000.0), ('f', 1000000.0, 3000000.0)]
    """
    open_calls: list[tuple[_Call, float]] = []
    events: list[dict[str, Any]] = []

    def close(depth: int, now: float) -> None:
        while len(open_calls) > depth:
            (name, place), began = open_calls.pop()
            events.append(
                {
                    "ph": "X",
                    "cat": "python",
                    "name": name,
                    "ts": began * 1e6,
                    "dur": (now - began) * 1e6,
                    "pid": 0,
                    "tid": 0,
                    "args": {"at": place},
                }
            )

    for now, calls in samples:
        same = 0
        while same < min(len(calls), len(open_calls)) and open_calls[same][0] == calls[same]:
            same += 1
        close(same, now)
        open_calls += [(call, now) for call in calls[same:]]
    close(0, end)
    return events


def _calls(frame: FrameType | None) -> list[_Call]:
    calls = []
    while frame is not None:
        code = frame.f_code
        # co_qualname, which tells methods of classes apart, is of Python 3.11.
        name = getattr(code, "co_qualname", code.co_name)
        calls.append((name, f"{code.co_filename}:{code.co_firstlineno}"))
        frame = frame.f_back
    return calls[::-1]
