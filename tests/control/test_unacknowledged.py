from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpctrain.control.unacknowledged import Unacknowledged


def test_what_is_not_acknowledged_is_kept_in_order(
    each_example: Callable[[Callable[[Any], None]], None],
):
    def check(draw: Any) -> None:
        sent: Unacknowledged[bytes] = Unacknowledged()
        reference: dict[int, bytes] = {}
        acknowledged = 0
        for number in range(1, int(draw.integers(1, 60))):
            item = bytes(int(draw.integers(0, 9)))
            assert sent.add(item, num_bytes=len(item)) == number
            reference[number] = item
            if draw.random() < 0.3:
                # Late ones, too: those that have been on a longer way.
                acknowledged = int(draw.integers(0, number + 1))
                sent.acknowledge(acknowledged)
                reference = {n: kept for n, kept in reference.items() if n > acknowledged}
            after = int(draw.integers(0, number + 1))
            assert list(sent.after(after)) == [(n, i) for n, i in reference.items() if n > after]
            assert sent.num_bytes == sum(map(len, reference.values()))
            assert len(sent) == len(reference)

    each_example(check)
