from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpctrain.control.batches import BATCH_BYTES, pack, unpack
from hpctrain.control.wire import ProtocolError, decode_frame, encode_frame


def test_frames_come_out_of_batches_as_they_went_in(
    each_example: Callable[[Callable[[Any], None]], None],
):
    def check(draw: Any) -> None:
        items = [
            ([number, [*range(int(draw.integers(0, 5)))]], bytes(int(draw.integers(0, 60_000))))
            for number in range(int(draw.integers(0, 20)))
        ]
        batches = [decode_frame(raw) for raw in pack("up", items)]
        assert [item for batch in batches for item in unpack(batch)] == items
        assert all(batch.op == "up" for batch in batches)
        assert all(len(batch.body) < BATCH_BYTES + 60_000 for batch in batches)

    each_example(check)


def test_a_frame_for_very_many_nodes_has_a_header_that_receivers_take():
    items = [([number, [*range(10**6, 10**6 + 30_000)]], b"x") for number in range(9)]
    batches = [decode_frame(raw) for raw in pack("down", items)]
    assert [item for batch in batches for item in unpack(batch)] == items
    assert all(len(batch.raw) < 2**20 for batch in batches)


def test_a_batch_that_ends_too_early_is_refused():
    batch = decode_frame(encode_frame({"op": "up", "items": [[1, 3], [2, 2]]}, b"abcd"))
    with pytest.raises(ProtocolError, match="4 bytes with a frame up to byte 5"):
        list(unpack(batch))


def test_a_batch_with_a_size_below_0_is_refused():
    batch = decode_frame(encode_frame({"op": "up", "items": [[1, 3], [2, -2]]}, b"abcd"))
    with pytest.raises(ProtocolError, match="up to byte 1"):
        list(unpack(batch))
