"""The wiring between a rank's session and its link."""

from __future__ import annotations

from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.worker.report import Session, Verdict


class LinkChannel:
    """Reports that travel over a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def report(self, line: bytes) -> None:
        """Pass a report's metrics on, soon."""
        self._link.post_report(line)

    def stage(self, report: int, line: bytes, parts: bytes) -> None:
        """Pass a report with a staged checkpoint on, at once."""
        self._link.post("stage", line + parts, report=report, line_bytes=len(line))


def connect_session(link: Link, session: Session) -> None:
    """Let what the executor decides reach the session, from the link's thread. Not collective."""

    def freeze(_: Frame) -> None:
        link.post("frozen", report=session.freeze())

    def stop(frame: Frame) -> None:
        session.stop_after(frame.header["report"])

    def decide(frame: Frame) -> None:
        header = frame.header
        session.decide(header["report"], Verdict(header["path"], header["error"]))

    link.handle("freeze", freeze)
    link.handle("stop", stop)
    link.handle("committed", decide)
