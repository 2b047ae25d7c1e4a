"""The bottom line of a terminal that follows a run: its text, and how it is drawn."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from hpctrain.rundir.display import format_elapsed, format_metrics, one_line, shorten
from hpctrain.rundir.status import RunStatus

_RATE_WINDOW_S = 20.0
_LONGEST_CHECKPOINT = 16
_LEAST_FOR_METRICS = 18
_GAP = "  "


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

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._console.width

    def print(self, line: str) -> None:
        """Print a line above."""
        self._console.out(line, highlight=False)

    def show(self, line: str, unfinished: Sequence[str] = ()) -> None:
        """Replace the bottom line, and what is above it of lines that are not complete."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text.from_ansi(row, no_wrap=True, overflow="crop") for row in unfinished]
        bottom = Text(line, no_wrap=True, overflow="ellipsis")
        self._live.update(Group(*lines, bottom), refresh=True)

    def close(self) -> None:
        """Take the bottom line away."""
        self._live.stop()


class ReportRate:
    """Reports a second, over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, number: int) -> None:
        """Take a report in."""
        if self._samples and number < self._samples[-1][1]:
            # An attempt that resumed from an earlier report.
            self._samples.clear()
        self._samples.append((at, number))
        while len(self._samples) > 2 and at - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()

    def describe(self) -> str:
        """Return the rate, or how long one report takes if that is more than a second."""
        if not self._samples:
            return ""
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        if end <= begin or last <= first:
            return ""
        rate = (last - first) / (end - begin)
        return f"{rate:.3g} reports/s" if rate >= 1 else f"{1 / rate:.3g} s/report"


def render_status_line(
    status: RunStatus,
    report: Mapping[str, Any] | None,
    *,
    rate: str = "",
    now: float,
    width: int | None = None,
) -> str:
    """Return the bottom line. Not collective.

    Where there are few columns, the report, the newest checkpoint and a metric stay; the middle
    of a long name, the rate, the time left and the elapsed time go.

    Parameters
    ----------
    status, report
        Of the run; the last report of rank 0.
    rate
        Of reports.
    now
        Seconds since the epoch.
    width
        Columns that there are; None is those of this process's terminal.
    """
    width = shutil.get_terminal_size().columns if width is None else width
    stops = status.phase.startswith("stopping")
    parts = {
        "name": status.name,
        "state": "stopping" if stops else status.state.value,
        "elapsed": format_elapsed(now - status.started_at) if status.started_at else "",
        "left": "" if status.deadline is None else f"{format_elapsed(status.deadline - now)} left",
        "report": "" if report is None else f"report {report['report']}",
        "metrics": "",
        "checkpoint": "",
        "rate": "" if report is None else rate,
        "phase": one_line(status.phase) if report is None else "",
    }
    if status.checkpoint:
        parts["checkpoint"] = f"checkpoint {shorten(status.checkpoint, _LONGEST_CHECKPOINT)}"
    metrics = {} if report is None else report["metrics"]
    least = len(_GAP) + min(_LEAST_FOR_METRICS, len(format_metrics(metrics))) if metrics else 0
    for given_up, shortest in (("name", 24), ("rate", 0), ("left", 0), ("name", 9), ("elapsed", 0)):
        over = len(_join(parts)) + least - width
        if over <= 0:
            break
        parts[given_up] = shorten(status.name, max(shortest, len(parts["name"]) - over))
        if not shortest:
            parts[given_up] = ""
    if metrics:
        room = width - len(_join(parts)) - len(_GAP)
        parts["metrics"] = format_metrics(metrics, width=max(_LEAST_FOR_METRICS, room))
    return _join(parts)


def _join(parts: Mapping[str, str]) -> str:
    return _GAP.join(part for part in parts.values() if part)
