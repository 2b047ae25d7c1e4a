"""`RankRequests`: what the executor answers when ranks ask for something."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.execute.write_slots import WriteSlots


class RankRequests:
    """Grants write slots, and sends the list of checkpoints to ranks that ask for it.

    Parameters
    ----------
    run_record
        Where it is logged that the list cannot be read.
    checkpoints
        Those of the run.
    max_writers
        As of ``SyncConfig(max_writers=...)``.
    """

    def __init__(
        self, run_record: ExecutorRecord, checkpoints: RunCheckpoints, *, max_writers: int | None
    ) -> None:
        self._run_record = run_record
        self._checkpoints = checkpoints
        self._max_writers = max_writers
        self._slots = WriteSlots(None)

    def begin_attempt(self) -> None:
        """Take all slots back: the ranks that had them are gone."""
        self._slots = WriteSlots(self._max_writers)

    def answer(
        self, tracker: AttemptTracker, broadcast: Callable[..., None], *, recorded: int
    ) -> None:
        """Answer what can be answered now.

        Parameters
        ----------
        tracker
            Has what ranks ask for.
        broadcast
            Sends a command to ranks.
        recorded
            The last report that was recorded. The list of checkpoints is sent once all reports that
            the asking ranks have made are.
        """
        if tracker.slots:
            for rank, number, wanted in tracker.slots:
                self._slots.receive(rank, number, wanted=wanted)
            tracker.slots.clear()
            granted: defaultdict[int, list[int]] = defaultdict(list)
            for rank, number in self._slots.grant().items():
                granted[number].append(rank)
            # One frame for all: each costs its way through the tree of agents.
            for number, ranks in granted.items():
                broadcast("slot", ranks=ranks, number=number)
        due = {report for report in tracker.asked if report <= recorded}
        if due:
            try:
                found = self._checkpoints.describe()
            except OSError as error:
                # The ranks wait, and are answered when the list can be read.
                self._run_record.warn_unwritten("checkpoints/", error)
                return
            tracker.asked -= due
            broadcast("checkpoints", found, report=recorded)
