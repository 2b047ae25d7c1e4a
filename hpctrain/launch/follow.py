"""Follow a run from its directory, and show in the terminal how it goes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from hpctrain import timeouts
from hpctrain.host_list import compress_hosts
from hpctrain.launch.status_line import ReportRate, StatusLine, render_status_line
from hpctrain.launch.tail import Tail
from hpctrain.log import log
from hpctrain.printable import show_controls
from hpctrain.rundir.announcement import announce, announcements
from hpctrain.rundir.display import format_metrics, one_line
from hpctrain.rundir.ledger import is_event
from hpctrain.rundir.metrics import is_report, say_if_cut
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import parse_json
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.uncaught import show_as
from hpctrain.worker.failure import LAST_WORDS

if TYPE_CHECKING:
    from hpctrain.result import Result

_LOCAL_INTERVAL_S = 0.2
_REPORT_INTERVAL_S = 1.0
# Importing rich takes longer than a short run.
_STATUS_LINE_AFTER_S = 1.0
_MOST_UNFINISHED = 4
_BYTES_AT_START = 2**20
# Of a rank that raises, and of faulthandler in one that crashes.
_LAST_WORDS = (f"hpctrain: {LAST_WORDS}", "Fatal Python error: ")


class Follower:
    """Shows states, reports and what ranks print. What goes wrong in it never ends a run.

    Parameters
    ----------
    paths
        The run directory.
    verbose
        0: no output of ranks. 1: rank 0's. 2: every rank's.
    out
        Where to. A terminal gets a status line (unless ranks print there themselves, `verbose` 0),
        everything else a line a second at most.
    from_start
        Whether what was reported and printed before is shown too, the end of it at least.
    """

    def __init__(
        self,
        paths: RunPaths,
        *,
        verbose: int = 1,
        out: TextIO | None = None,
        from_start: bool = False,
    ) -> None:
        self._paths = paths
        self._verbose = verbose
        self._out = out or sys.stdout
        self._last_bytes = _BYTES_AT_START if from_start else None
        self._metrics = Tail(paths.metrics, last_bytes=self._last_bytes)
        self._ledger = Tail(paths.ledger, last_bytes=self._last_bytes)
        if not from_start:
            self._metrics.skip_to_end()
            self._ledger.skip_to_end()
        self._logs: dict[int, Tail] = {}
        self._ended: set[int] = set()
        self._attempt = 0
        self._shown = ""
        self._waits = ""
        self._stalled = ""
        self._report: dict[str, Any] | None = None
        self._sees_all = from_start
        self._is_held_back = False
        self._checkpoint: str | None = None
        self._newest: str | None = None
        self._shown_at = 0.0
        self._rate = ReportRate()
        self._began_at = time.monotonic()
        self._status_line: StatusLine | None = None
        self._wants_status_line = verbose > 0 and _is_terminal(self._out)
        self._is_broken = False

    def step(self, *, final: bool = False) -> RunStatus | None:
        """Show what is new; return the status. `final` shows also what was held back."""
        try:
            status = read_status(self._paths)
        except OSError:
            # NFS: a file that is replaced while it is read can be "stale" for a moment.
            return None
        if not self._is_broken:
            try:
                self._show(status, final=final)
            # Whatever a closed pipe, a full disk or a strange terminal does to the display.
            except Exception as error:
                self._give_up(error)
        return status

    def show_wait(self, waits: str) -> None:
        """Show why the job of the run waits, once each time that changes; empty if it does not."""
        if waits == self._waits or self._is_broken:
            return
        self._waits = waits
        try:
            if waits:
                self._print(f"hpctrain: {self._paths.root.name} {waits}")
        except Exception as error:
            self._give_up(error)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Follow in a thread while the caller runs the executor."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_LOCAL_INTERVAL_S):
                self.step()

        thread = threading.Thread(target=follow, name="hpctrain-follower", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=timeouts.FOLLOWER_END_S)
            self.step(final=True)

    def close(self) -> None:
        """Take the status line away. Harmless if repeated."""
        line, self._status_line = self._status_line, None
        if line is not None:
            line.close()

    def _show(self, status: RunStatus | None, *, final: bool) -> None:
        final = final or (status is not None and status.state.is_final)
        if final:
            self.close()
        elif self._is_time_for_status_line():
            self._status_line = StatusLine(self._out)
        self._show_restarts(status)
        if status is None:
            self._show_reports(None, final=final)
            return
        if status.attempt != self._attempt:
            self._show_logs(final=True)
            self._attempt = status.attempt
            self._logs, self._ended = {}, set()
            self._newest = status.checkpoint
            if status.state is RunState.STARTING:
                # What it resumes from is no news.
                self._checkpoint = status.checkpoint
        self._open_logs(status)
        if not status.state.is_final:
            self._show_status(status)
        self._show_logs(final=final)
        self._show_reports(status.checkpoint, final=final)
        if final and self._sees_all:
            last = 0 if self._report is None else self._report["report"]
            say_if_cut(self._paths, status, last=last)
        status = status.with_changes(checkpoint=self._newest)
        self._show_stalled(status.stalled)
        # The final line comes last.
        if status.state.is_final:
            self._show_status(status)
        if self._status_line is not None:
            self._status_line.show(
                render_status_line(
                    status,
                    self._report,
                    rate=self._rate.describe(),
                    now=time.time(),
                    width=self._status_line.width,
                ),
                self._unfinished_lines(),
            )

    def _show_restarts(self, status: RunStatus | None) -> None:
        """Print that ranks are started again, and why, after what they have printed."""
        events = [*filter(is_event, map(parse_json, self._ledger.read()))]
        if status is not None and status.state is RunState.RUNNING:
            # The ledger was read after the status, whose attempt may have ended in between.
            for number, event in enumerate(events):
                if event["event"] == "attempt-ended" and event.get("attempt") == status.attempt:
                    self._announce(events[:number])
                    self._show_status(status)
                    events = events[number:]
                    break
        self._announce(events)

    def _announce(self, events: Sequence[Mapping[str, Any]]) -> None:
        # An executor in this process logs what it finds itself.
        sentences = announcements(events, _announce_all if self._sees_all else announce)
        if sentences:
            self._show_logs(final=True)
        for sentence in sentences:
            self._print(f"hpctrain: {self._paths.root.name}: {one_line(sentence)}")

    def _show_stalled(self, stalled: str) -> None:
        if stalled and stalled != self._stalled:
            self._print(f"hpctrain: {self._paths.root.name}: {stalled}")
        self._stalled = stalled

    def _is_time_for_status_line(self) -> bool:
        if self._status_line is not None or not self._wants_status_line:
            return False
        return time.monotonic() - self._began_at > _STATUS_LINE_AFTER_S

    def _open_logs(self, status: RunStatus) -> None:
        # The size of the world is not known before the ranks are there.
        if status.attempt and not self._logs:
            ranks = range(status.world_size)
            for rank in ranks if self._verbose > 1 else ranks[: self._verbose]:
                path = self._paths.rank_log(status.attempt, rank)
                self._logs[rank] = Tail(path, last_bytes=self._last_bytes)

    def _show_status(self, status: RunStatus) -> None:
        shown = status.state.value
        if shown == "running":
            nodes = compress_hosts(status.nodes)
            shown += f" attempt {status.attempt}: {status.world_size} ranks on {nodes}"
        elif status.job_id and not status.state.is_final:
            shown += f" as job {status.job_id}"
        if shown != self._shown:
            self._print(f"hpctrain: {status.name} {shown}")
        self._shown = shown

    def _show_logs(self, *, final: bool) -> None:
        for rank, tail in self._logs.items():
            label = f"[{rank}] " if self._verbose > 1 else ""
            # At once: above a status line every call draws it anew.
            if lines := self._before_last_words(rank, tail.read(final=final)):
                self._print("\n".join(f"{label}{line}" for line in lines))

    def _before_last_words(self, rank: int, lines: list[str]) -> list[str]:
        """Return the lines up to the traceback, which the error of the run shows, too."""
        if rank in self._ended:
            return []
        for number, line in enumerate(lines):
            if line.startswith(_LAST_WORDS):
                self._ended.add(rank)
                return lines[:number]
        return lines

    def _unfinished_lines(self) -> list[str]:
        shown = [
            (f"[{rank}] " if self._verbose > 1 else "") + show_controls(line, keep_colours=True)
            for rank, tail in self._logs.items()
            for line in tail.unfinished
        ]
        return shown[:_MOST_UNFINISHED]

    def _note_checkpoint(self, of_status: str | None) -> None:
        """See which checkpoint is the newest complete one; the status is seconds behind."""
        of_report = None if self._report is None else self._report["checkpoint"]
        # It appears by one rename.
        if of_report is not None and not os.path.isdir(self._paths.checkpoints / of_report):
            of_report = None
        for name in filter(None, (of_status, of_report)):
            is_older = (name + (self._newest or "")).isdigit() and int(name) < int(
                self._newest or 0
            )
            if not is_older:
                self._newest = name

    def _show_reports(self, of_status: str | None, *, final: bool) -> None:
        """Show the last report, and the newest checkpoint once it is complete."""
        # Only the last of them is shown, so only it is parsed.
        for line in self._metrics.read()[-1:]:
            report = parse_json(line)
            if not is_report(report):
                continue
            self._report = report
            self._rate.add(self._report["time"], self._report["report"])
            self._is_held_back = True
        self._note_checkpoint(of_status)
        now = time.monotonic()
        due = not self._wants_status_line and now - self._shown_at >= _REPORT_INTERVAL_S
        # The line of a report is written before its checkpoint is.
        new = self._newest if self._newest != self._checkpoint else None
        if not (final or due) or not (self._is_held_back or (final and new)):
            return
        if self._is_held_back and self._report is not None:
            self._print(_format_report(self._report, new))
        else:
            self._print(f"checkpoint {new}")
        self._is_held_back, self._shown_at = False, now
        self._checkpoint = self._newest

    def _print(self, line: str) -> None:
        line = show_controls(line, keep_colours=True)
        if self._status_line is not None:
            self._status_line.print(line)
        else:
            print(line, file=self._out, flush=True)

    def _give_up(self, error: Exception) -> None:
        self._is_broken = True
        try:
            self.close()
            if not isinstance(error, BrokenPipeError):
                log(
                    f"the display ends ({type(error).__name__}: {error}), the run goes "
                    f"on. Look at it with: hpctrain status {self._paths.root}",
                )
        except Exception:  # the terminal may be what is broken
            pass


def follow_to_end(paths: RunPaths, *, verbose: int) -> Result:
    """Follow a run that another process runs, until it ends; return its result.

    Not collective. The follower can be killed without harm to the run; after Ctrl-C it prints so.

    Raises
    ------
    TrainingFailedError
        If the run failed or was stopped.
    LaunchError
        If its job has ended and the executor never wrote so: it could not begin, or was killed.
    """
    from hpctrain.launch.liveness import Liveness
    from hpctrain.launch.pace import Pace
    from hpctrain.result import Result

    follower = Follower(paths, verbose=verbose, from_start=True)
    liveness, pace = Liveness(paths), Pace()
    try:
        while True:
            status = follower.step() if verbose else read_status(paths)
            if status is not None:
                if status.state.is_final:
                    break
                liveness.check(status)
                if verbose:
                    follower.show_wait(liveness.waits)
            else:
                liveness.check_directory()
            time.sleep(pace.next_interval(status))
        if verbose:
            follower.step(final=True)
    except KeyboardInterrupt as error:
        follower.close()
        log(
            f"detached from {paths.root.name}, which goes on. Follow it again with: "
            f"hpctrain attach {paths.root}   End it with: hpctrain cancel {paths.root}",
            new_line=True,
        )
        show_as(error, "")
        raise
    finally:
        follower.close()
    result = Result.from_path(paths.root)
    if result.error is not None:
        raise result.error
    return result


def _announce_all(event: Mapping[str, Any]) -> str:
    """Return the sentence of a restart, or of a node that holds up all others."""
    is_of_node = event["event"] in ("node-slow", "node-slow-over", "node-kept")
    if not is_of_node:
        return announce(event)
    from hpctrain.rundir.attempts import describe_event

    return describe_event(event)


def _is_terminal(out: TextIO) -> bool:
    try:
        return out.isatty()
    except (AttributeError, ValueError):  # not a whole file, or closed
        return False


def _format_report(report: Mapping[str, Any], checkpoint: str | None) -> str:
    parts = [f"report {report['report']}", format_metrics(report["metrics"])]
    return "  ".join([*filter(None, parts), *([f"checkpoint {checkpoint}"] if checkpoint else [])])
