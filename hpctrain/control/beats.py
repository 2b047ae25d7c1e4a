"""Signs of life of many agents, collected on the way to the executor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hpctrain.control.event_loop import EventLoop
from hpctrain.control.wire import Frame, encode_frame

_WAIT_S = 0.2
"""Seconds for which the first sign of life waits for those of others."""


class Beats:
    """The last sign of life of each agent that is to be passed on.

    They are not numbered, and not sent again: an old one is of no use.

    Parameters
    ----------
    loop
        Calls back when they have waited.
    send
        Sends a frame to the parent.
    num_senders
        Returns how many agents send them here.
    """

    def __init__(
        self, loop: EventLoop, *, send: Callable[[bytes], object], num_senders: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._send = send
        self._num_senders = num_senders
        self._beats: dict[int, list[Any]] = {}
        self._is_due = False

    def note(self, index: int, header: Any, received: int) -> None:
        """Take an agent's own.

        Parameters
        ----------
        index
            Of the agent.
        header
            Of its frame.
        received
            Number of the last frame that has reached it.
        """
        self._merge(index, [header.get("attempt"), header.get("use"), received])
        self._look()

    def take(self, frame: Frame) -> None:
        """Take those that a child has collected."""
        for index, beat in decode_beats(frame).items():
            self._merge(index, beat)
        self._look()

    def clear(self) -> None:
        """Forget them: there is no parent to send them to."""
        self._beats.clear()

    def _merge(self, index: int, beat: list[Any]) -> None:
        known = self._beats.get(index)
        if known is not None and not beat[1]:
            # What an agent sends by itself has no figures, which its answer has.
            beat = [known[0], known[1], beat[2]]
        self._beats[index] = beat

    def _look(self) -> None:
        if len(self._beats) >= self._num_senders():
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_later(_WAIT_S, self._end_wait)

    def _end_wait(self) -> None:
        self._is_due = False
        self._flush()

    def _flush(self) -> None:
        if self._beats:
            beats, self._beats = self._beats, {}
            self._send(encode_frame({"op": "beats"}, json.dumps(beats).encode()))


def decode_beats(frame: Frame) -> dict[int, list[Any]]:
    """Return attempt, figures and number of the last frame, by agent. Not collective."""
    return {int(index): beat for index, beat in json.loads(frame.body).items()}
