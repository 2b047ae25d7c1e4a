"""`SlowNodePolicy`: whether a run goes on without a node that is slow for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.log import log

if TYPE_CHECKING:
    from hpctrain.execute.slow_nodes import SlowNode


class SlowNodePolicy:
    """Chooses slow nodes to be left out, one at a time. One object for all attempts.

    Parameters
    ----------
    factor
        As of ``FailureConfig(slow_node_factor=...)``.
    why_kept
        Returns why the run cannot go on without a node; empty if it can.
    note
        Writes an event into the ledger.
    clock
        Seconds of ``time.monotonic``.
    """

    def __init__(
        self,
        factor: float | None,
        *,
        why_kept: Callable[[SlowNode], str],
        note: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factor = factor
        self._why_kept = why_kept
        self._note = note
        self._clock = clock
        self._kept: set[str] = set()
        self._left_out_at: float | None = None

    def choose(self, slow: Mapping[str, tuple[SlowNode, float]]) -> SlowNode | None:
        """Return the node to be left out now; None if there is none. Not collective.

        Parameters
        ----------
        slow
            The nodes that are slow, and since when they are named.
        """
        now = self._clock()
        left_out_at = self._left_out_at
        if self._factor is None or not slow:
            return None
        if left_out_at is not None and now - left_out_at < timeouts.SLOW_NODE_INTERVAL_S:
            return None
        for node, named_at in sorted(slow.values(), key=lambda item: -item[0].factor):
            if node.factor < self._factor or now - named_at < timeouts.SLOW_NODE_S:
                continue
            if reason := self._why_kept(node):
                self._keep(node, reason)
                continue
            return node
        return None

    def note_left_out(self) -> None:
        """Record that the ranks start again without a node. Not collective."""
        self._left_out_at = self._clock()

    def _keep(self, node: SlowNode, reason: str) -> None:
        if node.node not in self._kept:
            self._kept.add(node.node)
            self._note("node-kept", node=node.node, reason=reason)
            log(f"{node.node} is slow, and is kept: {reason}.")
