"""``report``: ``report(metrics)`` on 4 ranks, against a JSON line that is appended and flushed.

Both are measured in the same training function, in blocks that take turns. The line is what people
write who have no framework; ours is checked, numbered, survives a kill, and reaches a callback.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, run_command

LIMIT_S = 50e-6
FACTOR = 5.0


def run_reports(arguments: Namespace, *, size: int, paced: bool, callback: bool) -> dict[str, Any]:
    """Run the training function; return what its rank 0 measured, and the executor's CPU time."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        answer = Path(folder, "answer.json")
        words = [str(size), str(4 * arguments.rounds), str(int(paced)), str(int(callback)), answer]
        argv = [sys.executable, PROGRAMS / "many_reports.py", *words]
        run_command(argv, cwd=folder, env=child_environment(arguments.tree), timeout_s=600)
        measured: dict[str, Any] = json.loads(answer.read_bytes())
    return measured


def measure(arguments: Namespace) -> Iterator[Measured]:
    for size in arguments.sizes or (4,):
        for paced in (True, False):
            for callback in (True, False):
                how = "1 ms steps" if paced else "back to back"
                measured = run_reports(arguments, size=size, paced=paced, callback=callback)
                samples = {
                    "report()": [Sample(s) for s in measured["report_s"]],
                    "json line": [Sample(s) for s in measured["line_s"]],
                    "50 us": [Sample(LIMIT_S) for _ in measured["line_s"]],
                }
                yield judge(
                    f"report {how}{' +callback' if callback else ''}",
                    "report()",
                    samples,
                    [Goal(against="json line", factor=FACTOR), Goal(against="50 us")],
                    notes={
                        "mean per report(), us": round(measured["report_mean_s"] * 1e6, 1),
                        "mean per line, us": round(measured["line_mean_s"] * 1e6, 1),
                        "executor CPU per round of ranks, us": round(
                            measured["executor_cpu_s"] * 1e6, 1
                        ),
                    },
                )
