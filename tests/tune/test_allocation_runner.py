"""What the ledger of a trial's run says of lost nodes."""

from __future__ import annotations

from hpctrain.tune.allocation_runner import find_losses

BEGUN = {"event": "executor-started"}
LOST = {"event": "node-lost", "node": "b", "reason": "silent"}
ENDED = {"event": "attempt-ended", "kind": "preemption"}


def test_only_what_happened_since_the_run_was_last_begun_counts() -> None:
    over = [BEGUN, LOST, ENDED, {"event": "run-ended"}]
    assert find_losses(over) == ({"b": "silent"}, "preemption")
    assert find_losses([*over, BEGUN]) == ({}, None)
    assert find_losses([*over, BEGUN, {"event": "attempt-ended", "kind": None}]) == ({}, None)
    assert find_losses([]) == ({}, None)
