"""Sweeps among the runs that ``hpctrain list`` and ``hpctrain top`` show: a line for each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.cli.run_view import RunView
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

if TYPE_CHECKING:
    from hpctrain.rundir.live_view import LiveView
    from hpctrain.tune.overview import SweepOverview

_STATE_OF = {"running": RunState.RUNNING, "ended": RunState.FINISHED}


def view_sweeps(storage: Path) -> list[RunView]:
    """Return the sweeps of a directory as `hpctrain list` shows them. Not collective."""
    from hpctrain.tune.overview import find_sweeps, read_overview

    return [_as_run(read_overview(path)) for path in find_sweeps(storage)]


def _as_run(sweep: SweepOverview) -> RunView:
    return RunView(
        name=sweep.path.name,
        path=sweep.path,
        state=sweep.state,
        live=sweep.state == "running",
        status=_status_of(sweep),
        metrics={} if sweep.metric is None or sweep.value is None else {sweep.metric: sweep.value},
        next_step=f"hpctrain tune status {shlex.quote(str(sweep.path))}",
        sweep=sweep,
    )


def _status_of(sweep: SweepOverview) -> RunStatus:
    """Return what a run would have as its status."""
    return RunStatus(
        name=sweep.path.name,
        state=_STATE_OF.get(sweep.state, RunState.STOPPED),
        launcher="",
        started_at=sweep.began_at,
        ended_at=sweep.ended_at,
        error=sweep.reason,
    )


def with_sweeps(
    look: Callable[[], Sequence[LiveView]], storage: Path
) -> Callable[[], Sequence[LiveView]]:
    """Return what looks at the sweeps of a directory, too: those at work come first.

    Not collective.
    """
    from hpctrain.tune.overview import OverviewReader, find_sweeps

    reader = OverviewReader()

    def look_at_all() -> Sequence[LiveView]:
        sweeps = [_as_live(reader.read(path)) for path in find_sweeps(storage)]
        views = [*look(), *sorted(sweeps, key=lambda view: -view.status.started_at)]
        # The order of runs stays as it is.
        return sorted(views, key=lambda view: not view.is_at_work)

    return look_at_all


def _as_live(sweep: SweepOverview) -> LiveView:
    import time

    from hpctrain.rundir.live_view import LiveView

    shown = replace(sweep, copy_of=None)
    return LiveView(
        name=sweep.path.name,
        path=sweep.path,
        state=sweep.state,
        live=sweep.state == "running",
        status=_status_of(sweep),
        now=time.time(),
        metrics={},
        summary=shown.describe(),
    )
