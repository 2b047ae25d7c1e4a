"""The threads beside the one that scores."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.predict import pipeline
from hpctrain.predict.pipeline import Writer
from tests.waiting import wait_until


class Part:
    """A file of a part that takes note of its end."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def append(self, batch: object) -> None:
        self.ends.append("appended")

    def complete(self) -> None:
        self.ends.append("complete")

    def abandon(self) -> None:
        self.ends.append("abandoned")


def test_a_writer_that_waits_for_rows_ends_at_once_when_the_scoring_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "_LOOK_INTERVAL_S", 600.0)
    monkeypatch.setattr("hpctrain.timeouts.LAST_PREDICTIONS_S", 30.0)
    part = Part()
    writer = Writer(lambda _: part, lambda _: None, lambda _: None)  # type: ignore[arg-type]

    def score_and_fail() -> None:
        with writer:
            writer.put(0, {"data": np.arange(2)}, is_last=False)
            wait_until(lambda: part.ends, "the first rows")
            raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        score_and_fail()
    assert not writer._thread.is_alive()
    assert part.ends == ["appended", "abandoned"]
