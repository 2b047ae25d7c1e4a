"""What a terminal of 80 and of 120 columns shows of fabricated runs, compared whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.list_runs import _rows, fit_rows, render_rows
from hpctrain.cli.run_view import RunView
from hpctrain.launch.status_line import render_status_line
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

NOW = 1_700_010_000.0
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "one rank": (
        {"name": "mnist", "world_size": 1, "nodes": ("laptop",), "deadline": None},
        {"loss": 0.1234567},
    ),
    "8 ranks, nested": (
        {"name": "resnet", "world_size": 8, "nodes": ("n1",), "job_id": "1234567"},
        {"train": {"loss": 0.5, "top": {"1": 0.75, "5": 0.9}}, "note": "a\nb\x1b[2J"},
    ),
    "4000 ranks on 500 nodes": (
        {
            "name": "llama-70b-pretrain-2026-11-24-seed-17-lr-3e-4",
            "world_size": 4000,
            "nodes": tuple(f"node{n:03}" for n in range(500)),
            "job_id": "1234568",
        },
        {"loss": 2.3456789, "val/loss": 2.5, "tokens/s": 1234567.0, "lr": 3e-4},
    ),
    "long names": (
        {"name": "r" * 128, "checkpoint": "best-by-validation-accuracy-epoch-17"},
        {"validation/mean_average_precision_at_iou_0.5_0.95": 0.123456789, "b": 1},
    ),
    "60 metrics": ({"name": "many"}, {f"metric_{n}": n / 3 for n in range(60)}),
    "large values": ({"name": "values"}, {"list": list(range(100)), "loss": 1.0}),
    "stopping": ({"name": "stops", "phase": "stopping: it was asked to"}, {"loss": 1.0}),
    "starting": (
        {
            "name": "begins",
            "phase": "importing",
            "state": RunState.STARTING,
            "checkpoint": None,
            "reports": 0,
        },
        None,
    ),
}


def make(case: str) -> tuple[RunStatus, dict[str, Any] | None]:
    changes, metrics = RUNS[case]
    status = RunStatus(
        name="r",
        state=RunState.RUNNING,
        launcher="slurm",
        attempt=1,
        world_size=8,
        nodes=("n1",),
        phase="training",
        started_at=NOW - 3725,
        deadline=NOW + 82675,
        checkpoint="001200",
        reports=1201,
    ).with_changes(**changes)
    return status, None if metrics is None else {"report": 1201, "metrics": metrics}


GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_status_line(width: int) -> None:
    lines = []
    for case in RUNS:
        status, report = make(case)
        line = render_status_line(status, report, rate="12.3 reports/s", now=NOW, width=width)
        assert len(line) <= width
        lines.append(line)
    assert lines == (GOLDEN / f"status-line-{width}.txt").read_text().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_runs(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.cli.run_view.time.time", lambda: NOW)
    views = []
    for case in RUNS:
        status, report = make(case)
        views.append(
            RunView(
                name=status.name,
                path=Path("/runs") / status.name,
                state=status.state.value,
                live=True,
                status=status,
                reports=status.reports,
                metrics={} if report is None else report["metrics"],
                checkpoint=None if status.checkpoint is None else Path(status.checkpoint),
            )
        )
    header, *rows = fit_rows(_rows(views), width=width)
    shown = render_rows(rows, header)
    assert max(map(len, shown.splitlines())) <= width
    assert shown.splitlines() == (GOLDEN / f"list-{width}.txt").read_text().splitlines()
