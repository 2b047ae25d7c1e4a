"""The files that an attempt leaves: the return value, and a file for each rank that failed."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hpctrain import timeouts
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.rundir.files import make_directory, retry, write_atomic
from hpctrain.worker.failure import RankFailure


def remove_return_value(run_record: ExecutorRecord) -> None:
    """Remove what an attempt that was stopped returned: the next one may return nothing.

    Not collective.
    """
    path = run_record.paths.return_value
    retry(lambda: path.unlink(missing_ok=True), patience_s=timeouts.LAST_WRITE_S)


def write_return_value(run_record: ExecutorRecord, content: bytes, *, is_stopping: bool) -> None:
    """Write what rank 0's training function returned. Not collective.

    Parameters
    ----------
    content
        Pickled; empty for None.
    is_stopping
        Whether the run is to stop unfinished. Then it is tried once, and an error is logged: to
        leave the job in time matters more.

    Raises
    ------
    SupersededError
        If another executor has taken the run over.
    OSError
        If it cannot be written.
    """
    run_record.check_fence()
    if not content or not run_record.keeps_files:
        return
    path = run_record.directory.paths.return_value
    patience_s = 0.0 if is_stopping else timeouts.LAST_WRITE_S
    try:
        retry(lambda: write_atomic(path, content, mode=0o600), patience_s=patience_s)
    except OSError as error:
        if not is_stopping:
            raise
        run_record.warn_unwritten(path.name, error)


def write_failures(run_record: ExecutorRecord, failures: Iterable[RankFailure]) -> None:
    """Write a file for each rank that failed, as far as the disk allows it. Not collective."""
    if run_record.is_superseded or not run_record.keeps_files:
        return
    paths = run_record.directory.paths
    for failure in failures:
        path = paths.failure(run_record.status.attempt, max(failure.rank, 0))
        try:
            make_directory(path.parent, below=paths.root)
            write_atomic(path, json.dumps(failure.to_json(), indent=1).encode())
        except OSError as error:
            run_record.warn_unwritten(path.name, error)
