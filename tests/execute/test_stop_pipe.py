"""The pipe by which a tuner lets an executor look for a stop request at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import pytest

from hpctrain.execute.stop_pipe import StopListener, StopPipe, await_end


@pytest.fixture
def ends() -> Iterator[tuple[int, BinaryIO]]:
    reading, writing = os.pipe()
    pipe = open(writing, "wb", buffering=0)  # noqa: SIM115 - closed below
    yield reading, pipe
    pipe.close()
    with suppress(OSError):
        os.close(reading)


def test_news_is_seen_once_however_often_it_was_sent(ends: tuple[int, BinaryIO]) -> None:
    reading, writing = ends
    pipe, listener = StopPipe(), StopListener(reading)
    pipe.keep(writing)
    assert not listener.was_notified()
    pipe.notify()
    pipe.notify()
    assert [listener.was_notified(), listener.was_notified()] == [True, False]
    pipe.notify()
    assert listener.was_notified()


def test_a_tuner_that_is_gone_sends_no_news(ends: tuple[int, BinaryIO]) -> None:
    reading, writing = ends
    pipe, listener = StopPipe(), StopListener(reading)
    pipe.keep(writing)
    pipe.notify()
    pipe.close()
    assert [listener.was_notified() for _ in range(3)] == [True, False, False]
    pipe.notify()
    assert not StopListener().was_notified()


def test_an_executor_that_is_gone_is_told_nothing_and_no_error_is_raised(
    ends: tuple[int, BinaryIO],
) -> None:
    reading, writing = ends
    pipe = StopPipe()
    pipe.keep(writing)
    os.close(reading)
    pipe.notify()
    pipe.notify()
    assert writing.closed


def test_the_end_of_an_executor_is_seen_without_a_wait_and_not_its_news(
    ends: tuple[int, BinaryIO],
) -> None:
    reading, writing = ends
    pipe, other, listener = StopPipe(), StopPipe(), StopListener(reading)
    pipe.keep(writing)
    assert await_end([pipe, other], 0.0) == []
    pipe.notify()
    assert await_end([pipe, other], 0.0) == []
    listener.close()
    listener.close()
    # A test that waits for this timeout does not end in time.
    assert await_end([pipe, other], 3600.0) == [pipe]
    assert not listener.was_notified()
    pipe.close()
    assert await_end([pipe, other], 0.0) == []
