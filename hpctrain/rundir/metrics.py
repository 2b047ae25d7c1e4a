"""``metrics.jsonl``: rank 0's metrics, one line a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.log import log
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import (
    MOST_BYTES,
    is_time,
    parse_json,
    read_end,
    read_lines,
    say_torn,
)
from hpctrain.rundir.status import RunStatus

_TAIL_BYTES = 64 * 1024


def read_reports(paths: RunPaths, *, with_partial: bool = False) -> list[dict[str, Any]]:
    """Return the reports that count, by number; see `latest_reports`. Not collective.

    Lines that are torn, which a kill can leave, or damaged are left out.
    """
    return latest_reports(read_lines(paths.metrics, is_report), with_partial=with_partial)


def latest_reports(
    lines: Iterable[dict[str, Any]], *, with_partial: bool = False
) -> list[dict[str, Any]]:
    """Return the reports that count, by number, of all lines of the metrics. Not collective.

    An attempt that resumed from report 13 made reports 14, 15, ... again: the last line of a number
    counts, and what an earlier attempt reported beyond the end of the last is dropped. So are the
    lines of an attempt whose successor has reported already: its executor and ranks stood still,
    and do not know.

    Parameters
    ----------
    with_partial
        Whether a report keeps ``partial``, by which executors and tuners know that it need not have
        all metrics.
    """
    reports: dict[int, dict[str, Any]] = {}
    attempt, earlier = 0, set()
    for report in lines:
        if report["attempt"] in earlier:
            continue
        if report["attempt"] != attempt:
            earlier.add(attempt)
            attempt = report["attempt"]
            reports = {n: r for n, r in reports.items() if n < report["report"]}
        if not with_partial:
            report.pop("partial", None)
        reports[report["report"]] = report
    return [reports[number] for number in sorted(reports)]


def add_validated(reports: Iterable[dict[str, Any]], events: Iterable[Mapping[str, Any]]) -> None:
    """Add the metrics of validations to the reports of their checkpoints. Not collective.

    Parameters
    ----------
    reports
        As `latest_reports` returns them; their metrics are changed in place.
    events
        The ledger.
    """
    found = {
        (event.get("report"), event.get("attempt")): event.get("metrics", {})
        for event in events
        if event["event"] == "validation-ended" and isinstance(event.get("report"), int)
    }
    for report in reports if found else ():
        report["metrics"].update(found.get((report["report"], report["attempt"]), {}))


def read_last_report(paths: RunPaths) -> dict[str, Any] | None:
    """Return the last report that was written as a whole; None if there is none. Not collective."""
    try:
        end = _read_last_line(paths.metrics)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log(f"warning: {paths.metrics} is damaged: {error.strerror}.")
        return None
    *complete, rest = end.split(b"\n")
    if rest:
        say_torn(paths.metrics)
    last = parse_json(complete[-1]) if complete else None
    if is_report(last):
        return last
    if complete:
        log(f"warning: {paths.metrics}: the last line is damaged, and left out.")
    return None


def find_last_report(
    paths: RunPaths, is_wanted: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return the last report that counts and is wanted; None if there is none. Not collective.

    The file is read from its end, as far as it takes to find it.

    Raises
    ------
    OSError
        If the file is not there, or cannot be read just now.
    DamagedFileError
        If it is not a regular file, or too large.
    """
    num_bytes = _TAIL_BYTES
    while num_bytes <= MOST_BYTES:
        end = read_end(paths.metrics, num_bytes)
        if len(end) < num_bytes:
            break
        whole = filter(is_report, map(parse_json, end.split(b"\n")[1:-1]))
        # What an attempt reports beside its successor is not after that one's reports.
        lines = sorted(whole, key=lambda line: line["attempt"])
        found = _last(latest_reports(lines), is_wanted)
        # Whether one of an earlier attempt counts, the first report of its successor says.
        if found and found["attempt"] == lines[-1]["attempt"]:
            return found
        num_bytes *= 4
    return _last(read_reports(paths), is_wanted)


def _last(
    reports: Sequence[dict[str, Any]], is_wanted: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any] | None:
    return next(filter(is_wanted, reversed(reports)), None)


def _read_last_line(path: Path) -> bytes:
    """Return the end of a file, from before its last whole line on."""
    num_bytes = _TAIL_BYTES
    while True:
        end = read_end(path, num_bytes)
        # A line that is longer than `parse_json` takes need not be found.
        if end.count(b"\n") > 1 or len(end) < num_bytes or num_bytes > 2 * MOST_BYTES:
            return end
        num_bytes *= 2


def say_if_cut(paths: RunPaths, status: RunStatus, *, last: int) -> None:
    """Log it if metrics are lost, as `explain_cut` finds. Not collective."""
    if cut := explain_cut(status, last=last):
        log(f"warning: {paths.metrics} is damaged: {cut}.")


def explain_cut(status: RunStatus, *, last: int) -> str | None:
    """Return which metrics are lost: all, or the last ones of a run that is over; or None.

    Not collective.

    Parameters
    ----------
    last
        Number of the last report that was read; 0 if there is none.
    """
    if last < status.reports and (status.state.is_final or not last):
        return f"it ends at report {last} of {status.reports}"
    return None


def is_report(value: Any) -> bool:
    """Return whether a JSON value is a line of the metrics. Not collective."""
    return (
        isinstance(value, dict)
        and all(_is_number(value.get(name)) for name in ("attempt", "report"))
        and is_time(value.get("time"))
        and isinstance(value.get("metrics"), dict)
        and isinstance(value.get("checkpoint"), (str, type(None)))
    )


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63
