"""How long a rank takes until it joins the collectives of its steps, for the executor.

A backend whose library keeps such times says with `time_steps_with` how they are read.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.log import log_once

_LOAD_S = 0.3


class StepTimes(NamedTuple):
    """The times of one step of one rank, in microseconds of its own clock.

    They count from the end of the last collective of the step before. All are differences: clocks
    of nodes need not agree.
    """

    step: int
    """Its number, counted by the rank from 1."""
    total: int
    """Until the last collective of the step has ended, on all ranks at about the same time."""
    first: int
    """Until this rank called the first collective of the step: nothing is waited for before."""
    last: int
    """Until it called the last one."""


Read = Callable[[], Sequence[StepTimes]]
_read: Read | None = None


def time_steps_with(read: Read | None) -> None:
    """Say how the times are read; None: there are none any more. Not collective.

    Parameters
    ----------
    read
        Returns those of the last steps, oldest first. Called in a thread of its own.
    """
    global _read
    _read = read


def read_step_times() -> Sequence[StepTimes]:
    """Return the times of the last steps. Not collective.

    There are none where nothing records them, or the record cannot be read.
    """
    read = _read
    if read is None:
        return ()
    try:
        return read()
    except Exception as error:
        # It depends on what torch calls private: the training goes on without.
        log_once(f"the times of steps cannot be read, so no slow node is named: {error!r}")
        return ()


def encode_step_times(times: Iterable[StepTimes]) -> bytes:
    """Return the body of a frame. Not collective."""
    return json.dumps(list(times), separators=(",", ":")).encode()


def decode_step_times(body: bytes) -> list[StepTimes]:
    """Return what `encode_step_times` encoded. Not collective."""
    return [StepTimes(*row) for row in json.loads(body)]


def answer_step_times(link: Link) -> None:
    """Let the executor ask for step times, and for the load of this node, at any time.

    Not collective. They are read in a thread that ends with the answer.
    """

    def send_times(after: int) -> None:
        # Of this thread alone: what the reading takes from the training.
        began_at = time.thread_time()
        body = encode_step_times(each for each in read_step_times() if each.step > after)
        cost_us = round((time.thread_time() - began_at) * 1e6)
        link.post("step-times", body, cost_us=cost_us)

    def send_load(_: int) -> None:
        # Few ranks are ever asked.
        from hpctrain.worker.load import Load, measure_load

        before = measure_load()
        time.sleep(_LOAD_S)
        link.post("load", json.dumps(Load.between(before, measure_load()).to_json()).encode())

    def answer(frame: Frame) -> None:
        send = send_load if frame.op == "load" else send_times
        args = (frame.header.get("after", 0),)
        threading.Thread(target=send, args=args, name="hpctrain-step-times", daemon=True).start()

    link.handle("step-times", answer)
    link.handle("load", answer)
