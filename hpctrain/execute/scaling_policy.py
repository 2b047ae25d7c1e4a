"""`ScalingPolicy`: end an attempt at a good moment, so that the next one has more workers."""

from __future__ import annotations

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import RunStoppedError
from hpctrain.execute.node_pool import NodePool
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker

_WISH = StopNotice(kind=StopKind.RESIZE, why="nodes that it lacked are back")


class Resize(Exception):  # noqa: N818 - nothing is wrong
    """An attempt has ended so that the next one has more workers."""


class ScalingPolicy:
    """Looks for nodes that are back, and lets the ranks leave after a report that they agree on.

    Ranks that ask ``should_stop()`` save and return. Others are ended after a checkpoint that they
    make of their own accord; if they never make one, the size stays. One object an attempt.

    Parameters
    ----------
    recorder
        Holds the stop decision, and the newest checkpoint.
    tracker
        What the ranks have sent.
    node_pool
        Returns whether there are more nodes.
    stop
        Asks the ranks.
    """

    def __init__(
        self,
        recorder: Recorder,
        tracker: AttemptTracker,
        node_pool: NodePool,
        stop: StopAgreement,
    ) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self._node_pool = node_pool
        self._stop = stop
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
        if self._recorder.stop is None and self._node_pool.can_grow():
            self._recorder.request_stop(_WISH)
        try:
            self._stop.step()
        except RunStoppedError:
            if self._recorder.stop is not _WISH:
                raise
            if not self._patience_over:
                self._patience_over = True
                self._checkpoint = self._recorder.checkpoints.latest
            elif self._recorder.checkpoints.latest is not self._checkpoint:
                # The next attempt would not know of signals that this one got.
                self._stop.stop_for_signals()
                if self._recorder.stop is _WISH:
                    raise Resize(_WISH.why) from None

    def __enter__(self) -> ScalingPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()

    def withdraw(self) -> None:
        """Withdraw the request for more workers, if it stands."""
        self._recorder.withdraw_stop(StopKind.RESIZE)

    def conclude(self) -> None:
        """Raise if all ranks have returned where they were asked to.

        Raises
        ------
        Resize
            Then.
        """
        if self._tracker.is_done and self._recorder.stop is _WISH:
            # No rank has died, so nothing but the end of the job can be behind a signal.
            self._stop.stop_for_signals()
        # Ranks that did not know that they should leave have come to their own end.
        is_room_made = self._recorder.stop is _WISH and self._tracker.was_notified
        self.withdraw()
        if is_room_made and self._tracker.is_done:
            raise Resize(_WISH.why)
