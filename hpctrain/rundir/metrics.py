"""``metrics.jsonl``: rank 0's metrics, one line a report."""

from __future__ import annotations

import json
from typing import Any

from hpctrain.rundir.paths import RunPaths


def read_reports(paths: RunPaths) -> list[dict[str, Any]]:
    """Return the reports that count, by number. Not collective.

    An attempt that resumed from report 13 made reports 14, 15, ... again: the last line of a number
    counts, and what an earlier attempt reported beyond the end of the last is dropped. A torn last
    line, which a kill can leave, is left out.
    """
    try:
        lines = paths.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    reports: dict[int, dict[str, Any]] = {}
    attempt = 0
    for line in lines:
        if not line.endswith("\n"):
            break
        report = json.loads(line)
        if report["attempt"] != attempt:
            attempt = report["attempt"]
            reports = {n: r for n, r in reports.items() if n < report["report"]}
        reports[report["report"]] = report
    return [reports[number] for number in sorted(reports)]
