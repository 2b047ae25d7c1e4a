"""``metrics.jsonl``: rank 0's metrics, one line a report."""

from __future__ import annotations

from typing import Any

from hpctrain.rundir.files import parse_lines
from hpctrain.rundir.paths import RunPaths


def read_reports(paths: RunPaths) -> list[dict[str, Any]]:
    """Return the reports that count, by number. Not collective.

    An attempt that resumed from report 13 made reports 14, 15, ... again: the last line of a number
    counts, and what an earlier attempt reported beyond the end of the last is dropped. A torn last
    line, which a kill can leave, is left out.
    """
    try:
        text = paths.metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    reports: dict[int, dict[str, Any]] = {}
    attempt = 0
    for report in parse_lines(text):
        if report["attempt"] != attempt:
            attempt = report["attempt"]
            reports = {n: r for n, r in reports.items() if n < report["report"]}
        # Of interest to the executor alone.
        report.pop("partial", None)
        reports[report["report"]] = report
    return [reports[number] for number in sorted(reports)]
