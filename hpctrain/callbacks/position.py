"""`Position`: where a record stands that can only be appended to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any

from hpctrain.callback import RunContext
from hpctrain.rundir.directory import read_run_id
from hpctrain.rundir.files import make_directory, write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_object


class Position:
    """The record of a tracker that a run continues, and the last report in it.

    It lies in ``loggers/`` of the run directory, so the executor of the next job goes on in the
    same record. A copy of a run directory is another run, with a record of its own.

    Parameters
    ----------
    run_context
        The run.
    tracker
        Name of the tracker.
    store
        Where the record is. In another store the run has another record.
    """

    def __init__(self, run_context: RunContext, tracker: str, *, store: str = "") -> None:
        paths = RunPaths(run_context.path)
        self.run_id = read_run_id(paths) or run_context.name
        """Unique and permanent id of the run."""
        loggers = paths.root / "loggers"
        make_directory(loggers, below=paths.root)
        name = f"{tracker}-{self.run_id}"
        digest = hashlib.sha256(store.encode(errors="surrogatepass")).hexdigest()[:12]
        known: dict[str, Any] = {}
        # Version 0.1.0 wrote the first name, whatever the store.
        for self._path in (loggers / f"{name}.json", loggers / f"{name}-{digest}.json"):
            with contextlib.suppress(FileNotFoundError):
                known = read_object(self._path)
            if known.get("store") == store:
                break
            known = {}
        self._store = store
        self.record: str | None = known.get("record")
        """The tracker's id of the record; None before it exists."""
        self.report: int = known.get("report", 0)
        """Number of the last report in it."""

    def begin(self, record: str) -> None:
        """Write down that there is a record, with the reports that it has so far."""
        self.record = record
        write_atomic(self._path, self._content())

    def move(self, report: int) -> None:
        """Write down that a report is in the record."""
        self.report = report
        # In place, and always as long: a new file for each report would cost more than the report.
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, self._content(), 0)
        finally:
            os.close(descriptor)

    def _content(self) -> bytes:
        known = {"store": self._store, "record": self.record, "report": self.report}
        content = json.dumps(known)
        return content.ljust(len(content) - len(str(self.report)) + 20).encode() + b"\n"
