"""`LiveRecord`: writes ``live.json``, for those who look at a run."""

from __future__ import annotations

import time

from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.live import INTERVAL_S, Live, NodeUse, encode_live, make_use


class LiveRecord:
    """Writes how far each rank of an attempt is, and what its nodes do.

    Every 5 seconds at most, and only if something has changed. A file that cannot be written is
    left as it is, and the run goes on.

    Parameters
    ----------
    run_record
        Of the run; where it writes nothing, neither does this.
    attempt
        The ranks, and what they have sent.
    """

    def __init__(self, run_record: ExecutorRecord, attempt: AttemptExecutor) -> None:
        self._run_record = run_record
        self._attempt = attempt
        self._next_at = 0.0
        self._written: object = None

    def step(self) -> None:
        """Write the file if it is time to. Not collective."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + INTERVAL_S
        self.write()

    def write(self) -> None:
        """Write the file now, unless nothing has changed. Not collective."""
        run_record, progress = self._run_record, self._attempt.progress
        if not run_record.keeps_files:
            return
        ranks = range(len(progress))
        live = self._look()
        # Seconds without progress change by themselves, and so does the time.
        since = [progress.since(rank) for rank in ranks]
        seen = (live.attempt, live.phases, live.reports, live.node_ranks, live.uses, since)
        if seen == self._written:
            return
        try:
            if run_record.may_write:
                write_atomic(run_record.directory.paths.live, encode_live(live))
                self._written = seen
        except OSError as error:
            run_record.warn_unwritten("live.json", error)

    def _look(self) -> Live:
        progress, workers = self._attempt.progress, self._attempt.ranks.workers
        ranks = range(len(progress))
        nodes = self._run_record.status.nodes
        node_ranks: tuple[int, ...] = ()
        if len(workers) == len(progress):
            number = {node: index for index, node in enumerate(nodes)}
            known = tuple(number.get(worker.hostname, -1) for worker in workers)
            node_ranks = known if -1 not in known else ()
        uses = self._attempt.ranks.node_use()
        return Live(
            attempt=self._run_record.status.attempt,
            written_at=round(time.time(), 3),
            phases=tuple(map(progress.phase, ranks)),
            reports=tuple(map(progress.reports, ranks)),
            idle_s=tuple(max(0, int(progress.now - progress.since(rank))) for rank in ranks),
            node_ranks=node_ranks,
            nodes=nodes,
            uses=tuple(make_use(uses[node]) if node in uses else NodeUse() for node in nodes),
        )
