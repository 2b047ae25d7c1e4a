"""A `LiveView` as text: rows for ``hpctrain status``, and the page of ``hpctrain top``. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.host_list import compress_hosts
from hpctrain.metric_names import find_float, flatten, is_number
from hpctrain.rundir.chart import draw_chart
from hpctrain.rundir.display import (
    format_elapsed,
    format_metrics,
    format_number,
    format_size,
    one_line,
    shorten,
)
from hpctrain.rundir.live import NodeUse
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.speed import Goal
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

_KEY_WIDTH = 12
_CHART_HEIGHT = 5
_LONGEST_ROW = 1000
# Of the others the middle is left out.
_SENTENCES = ("queue", "nodes", "slowest", "restarted", "stalled", "slow", "error", "damaged")
_MOST_LINES = 3
_SILENCE_S = 10
_IDLE_S = 10
"""A rank that has made no progress for longer is named."""
RANK_COLUMNS = "  RANK  NODE              PHASE         REPORT    IDLE    CPU    MEM    GPU"
"""The header of the lines of `rank_line`."""
_COUNTS = ("epoch", "step", "iteration", "samples", "tokens", "images", "lr", "time")


def describe_begin(status: RunStatus) -> str:
    """Return what the time of its ``started_at`` is; empty if that is not known.

    Not collective. As long as no executor has begun, it is when the job was submitted; of a job
    that follows another one, the executor of that one began then, or this job was submitted.
    """
    if not status.started_at:
        return ""
    if status.state not in (RunState.SUBMITTING, RunState.SUBMITTED):
        return "started"
    return "" if status.attempt else "submitted"


def live_rows(view: LiveView) -> list[tuple[str, str]]:
    """Return what a run does now, or where it has ended, as names and values. Not collective."""
    rows = []
    phases = view.phases()
    if view.is_at_work or phases.keys() - {"done"}:
        shown = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        rows += [("phases", shown)] if shown else []
    if view.is_at_work and (speed := describe_speed(view)):
        rows.append(("speed", speed))
    moves = view.is_at_work and not _is_silent(view)
    rows += [("goal", describe_goal(goal, is_at_work=moves)) for goal in view.goals]
    if view.saved.count:
        rows.append(("checkpoints", _describe_saved(view)))
    if view.is_at_work and (use := _describe_use(view)):
        rows.append(("nodes", use))
    if slowest := _describe_slowest(view):
        rows.append(("slowest", slowest))
    return [(key, one_line(value)) for key, value in rows]


def describe_speed(view: LiveView) -> str:
    """Return reports and samples a second; empty if they are not known. Not collective."""
    speed, parts = view.speed, []
    if _is_silent(view):
        return ""
    if speed.reports is not None:
        per = f"{speed.reports:.3g} reports/s"
        parts.append(per if speed.reports >= 1 else f"{1 / speed.reports:.3g} s/report")
    if speed.samples is not None:
        parts.append(f"{_short(speed.samples)} {speed.unit}/s")
    return ", ".join(parts)


def describe_goal(goal: Goal, *, is_at_work: bool) -> str:
    """Return how far a stop criterion is. Not collective."""
    value = "-" if goal.value is None else _number(goal.value)
    text = f"{goal.name} {value} of {_number(goal.target)}"
    if goal.left_s == 0:
        return f"{text}, reached"
    if goal.left_s is None or not is_at_work:
        return text
    return f"{text}, {format_elapsed(goal.left_s)} left"


def describe_left(view: LiveView) -> str:
    """Return the time until the first goal, or the end of the time limit. Not collective."""
    if not view.is_at_work:
        return ""
    goals = () if _is_silent(view) else view.goals
    known = [s for s in (view.left_s, *(goal.left_s for goal in goals)) if s is not None]
    return format_elapsed(min(known)) if known else ""


def _is_silent(view: LiveView) -> bool:
    """Return whether reports have stopped: how quick they were says nothing of what is left."""
    if view.reported_at is None or not view.speed.reports:
        return False
    return view.now - view.reported_at > _SILENCE_S + 3 / view.speed.reports


def condition_rows(status: RunStatus, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what has held a run up, and the newest metrics. Not collective."""
    rows = [
        ("restarted", status.last_restart),
        ("stalled", status.stalled),
        ("slow", status.slow),
        ("metrics", format_metrics(metrics, most=8) if metrics else None),
    ]
    return [(key, value) for key, value in rows if value]


def page_rows(view: LiveView) -> list[tuple[str, str]]:
    """Return all rows of the page of a run, above its curve. Not collective."""
    status = view.status
    rows = [("path", str(view.path))]
    if status.job_id:
        rows.append(("job", status.job_id))
    if view.waits:
        rows.append(("queue", view.waits))
    elif view.unanswered:
        rows.append(("queue", view.unanswered))
    if status.attempt:
        nodes = f" on {compress_hosts(status.nodes)}" if status.nodes else ""
        many = "rank" if status.world_size == 1 else "ranks"
        ranks = f": {status.world_size} {many}{nodes}" if status.world_size else ""
        rows.append(("attempt", f"{status.attempt}{ranks}"))
    if view.reports:
        ago = "" if view.reported_at is None else f", {_ago(view, view.reported_at)}"
        rows.append(("reports", f"{view.reports}{ago}"))
    rows += live_rows(view)
    if view.left_s is not None:
        rows.append(("time left", format_elapsed(view.left_s)))
    rows += condition_rows(status, view.metrics)
    if started := describe_begin(status):
        rows.append((started, _ago(view, status.started_at)))
    if status.ended_at is not None:
        rows.append(("ended", _ago(view, status.ended_at)))
    if status.error is not None:
        rows.append(("error", status.error))
    if problem := view.problem or status.damage:
        rows.append(("damaged", problem))
    return rows


def render_page(
    view: LiveView, *, width: int, num_ranks: int = 10, slowest_first: bool = True
) -> list[str]:
    """Return the page of a run as lines of text. Not collective.

    Parameters
    ----------
    view
        The run.
    width
        Columns.
    num_ranks
        How many ranks are listed.
    slowest_first
        As of `LiveView.order`.
    """
    lines = [*page_head(view, width=width), *curve_lines(view, width=width)]
    order = view.order(slowest_first=slowest_first)
    if order and view.is_at_work:
        lines += ["", RANK_COLUMNS[:width].rstrip()]
        lines += [rank_line(view, rank, width=width) for rank in order[:num_ranks]]
        if more := len(order) - num_ranks:
            lines += [f"  and {more} more"] if more > 0 else []
    return lines


def page_head(view: LiveView, *, width: int) -> list[str]:
    """Return the state and the rows of a run as lines of text. Not collective."""
    lines = [shorten(one_line(f"{view.name}: {view.shown_state}{_phase(view)}"), width)]
    for key, value in page_rows(view):
        room = max(8, width - _KEY_WIDTH - 2)
        text = one_line(value[:_LONGEST_ROW])
        shown = [shorten(text, room)]
        if key in _SENTENCES:
            shown = textwrap.wrap(text, room, max_lines=_MOST_LINES, placeholder="…")
        for number, part in enumerate(shown):
            lines.append(f"  {'' if number else key:<{_KEY_WIDTH}}{part}")
    return lines


def curve_lines(view: LiveView, *, width: int, height: int = _CHART_HEIGHT) -> list[str]:
    """Return the curve of the loss, or of another metric, as lines of text. Not collective."""
    if (name := choose_curve(view)) is None:
        return []
    points = [
        (float(report.number), value)
        for report in view.history
        if (value := find_float(report.metrics, name)) is not None
    ]
    chart = draw_chart(points, width=width, height=height)
    if not chart or len(points) < 2:
        return []
    first, last = int(points[0][0]), int(points[-1][0])
    title = f"{name}: {points[-1][1]:.6g} (reports {first} to {last})"
    return ["", shorten(one_line(f"  {title}"), width), *(line.rstrip() for line in chart)]


def choose_curve(view: LiveView) -> str | None:
    """Return the metric that is drawn: a loss if there is one; None if nothing can be drawn.

    Not collective.
    """
    numbers = [
        name
        for name, value in flatten(view.metrics).items()
        if is_number(value) and name.isprintable()
    ]
    losses = [name for name in numbers if "loss" in name.lower()]
    if losses:
        return min(losses, key=len)
    others = [n for n in numbers if not any(count in n.lower() for count in _COUNTS)]
    return next(iter(others or numbers), None)


def rank_line(view: LiveView, rank: int, *, width: int) -> str:
    """Return one line of the list of ranks. Not collective."""
    live = view.ranks
    assert live is not None
    use = live.uses[live.node_ranks[rank]] if live.node_ranks else NodeUse()
    line = (
        f"{rank:>6}  {shorten(live.node_of(rank) or '-', 16):<16}  "
        f"{shorten(one_line(live.phases[rank]), 12):<12}  {live.reports[rank]:>6}  "
        f"{_idle(view.idle_s(rank)):>6}  {_percent(use.cpu, use.cpus):>5}  "
        f"{_percent(use.memory, use.memory_limit):>5}  {_gpu_percent(use):>5}"
    )
    # A host name of a file that others may have written.
    return one_line(line)[:width].rstrip()


def _phase(view: LiveView) -> str:
    phase = view.status.phase
    if not view.is_at_work or not phase:
        return ""
    if phase.startswith("stopping"):
        return f" ({phase.removeprefix('stopping: ')})"
    # Otherwise there is a row for it.
    return "" if view.phases() else f" ({phase})"


def _describe_saved(view: LiveView) -> str:
    saved = view.saved
    parts = [f"{saved.count}, the newest {saved.newest}"]
    if saved.size is not None:
        parts.append(format_size(saved.size))
    if saved.created_at is not None:
        parts.append(_ago(view, saved.created_at))
    return ", ".join(parts)


def _describe_use(view: LiveView) -> str:
    uses = view.node_use()
    parts = []
    for what, of in (("CPU", _cpu_share), ("memory", _memory_share), ("GPU", _gpu_share)):
        shares = {node: share for node, use in uses.items() if (share := of(use)) is not None}
        if not shares:
            continue
        mean = sum(shares.values()) / len(shares)
        text = f"{what} {mean:.0%}"
        if len(shares) > 1:
            least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
            text += f" ({shares[least]:.0%} on {least} to {shares[most]:.0%} on {most})"
        parts.append(text)
    return ", ".join(parts)


def _describe_slowest(view: LiveView) -> str:
    if not view.is_at_work or view.ranks is None or not len(view.ranks):
        return ""
    live, rank = view.ranks, view.order(slowest_first=True)[0]
    idle_s, behind = view.idle_s(rank), max(live.reports) - live.reports[rank]
    # Ranks do not report at the same moment.
    if idle_s < _IDLE_S and behind <= 1:
        return ""
    where = f" on {live.node_of(rank)}" if live.node_of(rank) else ""
    late = f" ({behind} behind)" if behind else ""
    return (
        f"rank {rank}{where}: {live.phases[rank]}, report {live.reports[rank]}{late}, "
        f"{_idle(idle_s)} without progress"
    )


def _cpu_share(use: NodeUse) -> float | None:
    return use.cpu / use.cpus if use.cpu is not None and use.cpus else None


def _memory_share(use: NodeUse) -> float | None:
    return use.memory / use.memory_limit if use.memory is not None and use.memory_limit else None


def _gpu_share(use: NodeUse) -> float | None:
    busy = [gpu[0] for gpu in use.gpus if gpu[0] is not None]
    return sum(busy) / len(busy) / 100 if busy else None


def _percent(value: float | None, of: float | None) -> str:
    return f"{value / of:.0%}" if value is not None and of else "-"


def _gpu_percent(use: NodeUse) -> str:
    share = _gpu_share(use)
    return "-" if share is None else f"{share:.0%}"


def _idle(seconds: int) -> str:
    return f"{seconds} s" if seconds < 100 else format_elapsed(seconds)


def _ago(view: LiveView, since: float) -> str:
    return f"{_age(view.now - since)} ago"


def _age(seconds: float) -> str:
    seconds = max(0.0, seconds)
    units: Sequence[tuple[str, float, int]] = (
        ("days", 172800.0, 86400),
        ("h", 7200.0, 3600),
        ("min", 120.0, 60),
    )
    for unit, least, length in units:
        if seconds >= least:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _short(number: float) -> str:
    for unit, length in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= length:
            return f"{number / length:.3g}{unit}"
    return f"{number:.3g}"


def _number(value: float) -> str:
    is_whole = abs(value) < 1e15 and value == int(value)
    return f"{value:.0f}" if is_whole else format_number(value)
