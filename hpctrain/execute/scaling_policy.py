"""`ScalingPolicy`: end an attempt at a good moment, so that the next one has better nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import RunStoppedError
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker

if TYPE_CHECKING:
    from hpctrain.execute.slow_nodes import SlowNode


class Resize(Exception):  # noqa: N818 - nothing is wrong
    """An attempt has ended so that the next one has more workers, or no slow node.

    Parameters
    ----------
    why
        For the ledger.
    without
        The node that the next attempt leaves out; None: none.
    """

    def __init__(self, why: str, *, without: SlowNode | None = None) -> None:
        super().__init__(why)
        self.without = without


class ScalingPolicy:
    """Looks for nodes that are back, or slow, and lets the ranks leave after an agreed report.

    Ranks that ask ``should_stop()`` save and return. Others are ended after a checkpoint that they
    make by themselves; if they never make one, the size stays. One object an attempt.

    Parameters
    ----------
    recorder
        Holds the stop decision, and the newest checkpoint.
    tracker
        What the ranks have sent.
    stop
        Asks the ranks.
    can_grow
        Returns whether the next attempt would have more nodes.
    slow_node
        Returns a node that is to be left out; None while there is none.
    """

    def __init__(
        self,
        recorder: Recorder,
        tracker: AttemptTracker,
        stop: StopAgreement,
        *,
        can_grow: Callable[[], bool],
        slow_node: Callable[[], SlowNode | None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self._stop = stop
        self._can_grow = can_grow
        self._slow_node = slow_node
        self._wish: StopNotice | None = None
        self._without: SlowNode | None = None
        self._patience_over = False
        self._checkpoint: Checkpoint | None = None

    def step(self) -> None:
        """Take the next step towards a stop, for whatever reason, if there is one to take.

        Raises
        ------
        Resize
            If ranks that do not leave have just made a checkpoint.
        RunStoppedError
            If ranks do not leave that must.
        """
        if self._recorder.stop is None:
            self._look_at_nodes()
        try:
            self._stop.step()
        except RunStoppedError:
            if not self._is_wished:
                raise
            if not self._patience_over:
                self._patience_over = True
                self._checkpoint = self._recorder.checkpoints.latest
            elif self._recorder.checkpoints.latest is not self._checkpoint:
                # The next attempt would not know of signals that this one got.
                self._stop.stop_for_signals()
                if self._is_wished:
                    raise self._resize() from None

    def _look_at_nodes(self) -> None:
        if self._can_grow():
            why = "nodes that it lacked are back"
        elif (slow := self._slow_node()) is not None:
            self._without = slow
            why = str(slow)
        else:
            return
        self._wish = StopNotice(kind=StopKind.RESIZE, why=why)
        self._recorder.request_stop(self._wish)

    @property
    def _is_wished(self) -> bool:
        return self._wish is not None and self._recorder.stop is self._wish

    def _resize(self) -> Resize:
        assert self._wish is not None
        return Resize(self._wish.why, without=self._without)

    def __enter__(self) -> ScalingPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()

    def withdraw(self) -> None:
        """Withdraw the request for other nodes, if it stands."""
        self._recorder.withdraw_stop(StopKind.RESIZE)

    def conclude(self) -> None:
        """Raise if all ranks have returned where they were asked to.

        Raises
        ------
        Resize
            If all ranks have returned because they were asked to make room for a resize.
        """
        if self._tracker.is_done and self._is_wished:
            # No rank has died, so nothing but the end of the job can be behind a signal.
            self._stop.stop_for_signals()
        # Ranks that did not know that they should leave have come to their own end.
        is_room_made = self._is_wished and self._tracker.was_notified
        self.withdraw()
        if is_room_made and self._tracker.is_done:
            raise self._resize()
