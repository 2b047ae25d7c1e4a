"""The wiring between a rank's session and its link."""

from __future__ import annotations

import json

from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.worker.commits import CommitOutcome
from hpctrain.worker.import_watch import ImportWatch
from hpctrain.worker.report import Session


class LinkChannel:
    """Reports that travel over a link.

    Parameters
    ----------
    link
        To the executor.
    at_once
        Whether each report is sent by itself, since the rank waits for what follows from it.
    imports
        Tells what the training function has imported, which is sent with reports.
    """

    def __init__(
        self, link: Link, *, at_once: bool = False, imports: ImportWatch | None = None
    ) -> None:
        self._link = link
        self._at_once = at_once
        self._imports = imports

    def report(self, line: bytes) -> None:
        """Pass a report's metrics on, soon."""
        if self._at_once:
            self._link.post("report", line)
        else:
            self._link.post_report(line)
        self._send_imports()

    def announce(self, line: bytes) -> None:
        """Pass a report on, at once, whose part of a checkpoint follows."""
        self._link.post("report", line, part_follows=True)
        self._send_imports()

    def part(self, report: int, part: bytes) -> None:
        """Pass a staged part of a checkpoint on, at once."""
        self._link.post("part", part, report=report)

    def ask(self, report: int) -> None:
        """Ask for all checkpoints up to a report."""
        self._link.post("checkpoints", report=report)

    def slot(self, number: int, wanted: bool) -> None:
        """Ask for a slot to write, or give it back."""
        self._link.post("slot", number=number, wanted=wanted)

    def progress(self, op: str, **details: str | int) -> None:
        """Pass on how far this rank is."""
        self._link.post(op, b"", **details)

    def _send_imports(self) -> None:
        if self._imports is not None and (names := self._imports.take_new()):
            self._link.post("imported", modules=names)


def connect_session(link: Link, session: Session) -> None:
    """Let what the executor decides reach the session, from the link's thread. Not collective."""

    def freeze(_: Frame) -> None:
        link.post("frozen", report=session.freeze())

    def stop(frame: Frame) -> None:
        header = frame.header
        session.stop_after(header["report"], header.get("leave"), unwind=header["unwind"])

    def decide(frame: Frame) -> None:
        header = frame.header
        session.decide(header["report"], CommitOutcome(header["path"], header["error"]))

    def begin_slot(frame: Frame) -> None:
        session.writing.begin(frame.header["number"])

    def go_on(frame: Frame) -> None:
        session.go_on_after(frame.header["report"])

    link.handle("go-on", go_on)
    link.handle("freeze", freeze)
    link.handle("stop", stop)

    def list_checkpoints(frame: Frame) -> None:
        session.receive_checkpoints(frame.header["report"], json.loads(frame.body))

    link.handle("slot", begin_slot)
    link.handle("committed", decide)
    link.handle("checkpoints", list_checkpoints)
