"""Follow a run from its directory, and show in the terminal how it goes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpctrain.host_list import compress_hosts
from hpctrain.log import log
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, read_status

if TYPE_CHECKING:
    from hpctrain.result import Result

_LOCAL_INTERVAL_S = 0.2
_REPORT_INTERVAL_S = 1.0
# Importing rich takes longer than a short run.
_STATUS_LINE_AFTER_S = 1.0
_RATE_WINDOW_S = 20.0
_BYTES_AT_START = 2**20


class Tail:
    """What was appended to a file since the last look.

    Parameters
    ----------
    path
        The file, which may not exist yet.
    last_bytes
        Of a file that is longer at the first look, only so much of its end is read.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self.path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._rest = b""
        self._begins_inside_line = False

    def read(self, *, final: bool = False) -> list[str]:
        """Return the complete lines that are new; `final` returns an incomplete one too."""
        try:
            with open(self.path, "rb") as file:
                if self._last_bytes is not None:
                    self._skip_to_last_bytes(file.seek(0, 2))
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(content)
        *lines, rest = (self._rest + content).split(b"\n")
        if self._begins_inside_line and lines:
            del lines[0]
            self._begins_inside_line = False
        # A progress bar writes for hours without a newline: only its last state is kept.
        self._rest = _as_shown(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        if final and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [_as_shown(line).decode("utf-8", errors="replace") for line in lines]

    def skip_to_end(self) -> None:
        """Begin with what is appended from now on."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0

    def _skip_to_last_bytes(self, size: int) -> None:
        assert self._last_bytes is not None
        self._offset = max(0, size - self._last_bytes)
        self._last_bytes = None
        if self._offset:
            self._begins_inside_line = True


class StatusLine:
    """The bottom line of a terminal; everything else scrolls above it.

    Parameters
    ----------
    out
        The terminal.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        # A process that is killed would leave the terminal without a cursor.
        self._console.show_cursor(True)

    def say(self, line: str) -> None:
        """Print a line above."""
        self._console.out(line, highlight=False)

    def show(self, line: str) -> None:
        """Replace the bottom line."""
        from rich.text import Text

        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        """Take the bottom line away."""
        self._live.stop()


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
        if not from_start:
            self._metrics.skip_to_end()
        self._logs: dict[int, Tail] = {}
        self._attempt = 0
        self._told = ""
        self._waits = ""
        self._held_back: str | None = None
        self._shown_at = 0.0
        self._rate = _ReportRate()
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
                self._say(f"hpctrain: {self._paths.root.name} {waits}")
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
            thread.join(timeout=5.0)
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
        if status is not None:
            if status.attempt != self._attempt:
                self._show_logs(final=True)
                self._attempt = status.attempt
                self._logs = {}
            self._open_logs(status)
            if not status.state.is_final:
                self._show_status(status)
        self._show_logs(final=final)
        self._show_reports(final=final)
        if status is not None:
            # The last word comes last.
            if status.state.is_final:
                self._show_status(status)
            if self._status_line is not None:
                self._status_line.show(self._summarize(status))

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
        told = status.state.value
        if told == "running":
            nodes = compress_hosts(status.nodes)
            told += f" attempt {status.attempt}: {status.world_size} ranks on {nodes}"
        elif status.job_id and not status.state.is_final:
            told += f" as job {status.job_id}"
        if told != self._told:
            self._say(f"hpctrain: {status.name} {told}")
        self._told = told

    def _show_logs(self, *, final: bool) -> None:
        for rank, tail in self._logs.items():
            label = f"[{rank}] " if self._verbose > 1 else ""
            # At once: above a status line every call draws it anew.
            if lines := tail.read(final=final):
                self._say("\n".join(f"{label}{line}" for line in lines))

    def _show_reports(self, *, final: bool) -> None:
        # Only the last of them is shown, so only it is parsed.
        for line in self._metrics.read()[-1:]:
            report = json.loads(line)
            self._rate.add(report["time"], report["report"])
            self._held_back = _format_report(report)
        now = time.monotonic()
        due = not self._wants_status_line and now - self._shown_at >= _REPORT_INTERVAL_S
        if self._held_back and (final or due):
            self._say(self._held_back)
            self._held_back, self._shown_at = None, now

    def _summarize(self, status: RunStatus) -> str:
        stops = status.phase.startswith("stopping")
        parts = [status.name, "stopping" if stops else status.state.value]
        if status.started_at:
            parts.append(_format_elapsed(time.time() - status.started_at))
        if self._held_back:
            # What is cut off at the right is what a person can do without.
            parts += [self._held_back, self._rate.describe()]
        else:
            parts.append(status.phase)
        return "  ".join(part for part in parts if part)

    def _say(self, line: str) -> None:
        if self._status_line is not None:
            self._status_line.say(line)
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


def _format_elapsed(seconds: float) -> str:
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _ReportRate:
    """Reports a second, over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, number: int) -> None:
        if self._samples and number < self._samples[-1][1]:
            # An attempt that resumed from an earlier report.
            self._samples.clear()
        self._samples.append((at, number))
        while len(self._samples) > 2 and at - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()

    def describe(self) -> str:
        if not self._samples:
            return ""
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        return f"{(last - first) / (end - begin):.3g} reports/s" if end > begin else ""


def follow_to_end(paths: RunPaths, *, verbose: int) -> Result:
    """Follow a run that another process runs, until it ends; return its result.

    Not collective. The follower can be killed without harm to the run; Ctrl-C says so.

    Raises
    ------
    TrainingFailedError
        If the run failed or was stopped.
    LaunchError
        If its job has ended and the executor never said so: it could not begin, or was killed.
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
    except KeyboardInterrupt:
        follower.close()
        log(
            f"detached from {paths.root.name}, which goes on. Follow it again with: "
            f"hpctrain attach {paths.root}   End it with: hpctrain cancel {paths.root}",
            new_line=True,
        )
        raise
    finally:
        follower.close()
    result = Result.from_path(paths.root)
    if result.error is not None:
        raise result.error
    return result


def _is_terminal(out: TextIO) -> bool:
    try:
        return out.isatty()
    except (AttributeError, ValueError):  # not a whole file, or closed
        return False


def _as_shown(line: bytes) -> bytes:
    """Return what a terminal still shows of a line that was overwritten after carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _format_report(report: dict[str, Any]) -> str:
    metrics = "  ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in report["metrics"].items()
    )
    saved = f"  checkpoint {report['checkpoint']}" if report["checkpoint"] else ""
    return f"report {report['report']}  {metrics}{saved}"
