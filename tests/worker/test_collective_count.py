from __future__ import annotations

from typing import Any

import pytest

from hpctrain.loop_time import LoopTime
from hpctrain.worker import collective_count
from hpctrain.worker.collective_count import CollectiveCount


class FakeChannel:
    """Keeps what a session would send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def progress(self, op: str, **details: Any) -> None:
        self.sent.append((op, details))


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def count(channel: FakeChannel) -> CollectiveCount:
    return CollectiveCount(channel, LoopTime())  # type: ignore[arg-type]


def test_calls_are_counted_and_short_waits_are_not_reported(
    count: CollectiveCount, channel: FakeChannel
):
    for number in (1, 2):
        with count.enter("barrier()") as wait:
            wait()
        assert count.num_begun == number
    assert channel.sent == []


def test_a_long_wait_is_reported_once_and_so_is_its_end(
    count: CollectiveCount, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(collective_count, "_LONG_WAIT_S", -1.0)
    with count.enter("barrier()") as wait:
        wait()
        wait()
        assert channel.sent == [("waits", {"collective": 1, "stage": "barrier()"})]
    assert channel.sent[1:] == [("waits", {"collective": 0, "stage": "barrier()"})]


def test_the_end_of_a_wait_in_vain_is_not_reported(
    count: CollectiveCount, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(collective_count, "_LONG_WAIT_S", -1.0)

    def fail() -> None:
        with count.enter("barrier()") as wait:
            wait()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert [details["collective"] for _, details in channel.sent] == [1]
