"""The sections of a page on what a run is, and on its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.host_list import compress_hosts
from hpctrain.launch.run_diff import flatten_fields, format_field
from hpctrain.run_report.facts import RunFacts
from hpctrain.run_report.markup import (
    Cell,
    Html,
    details,
    facts,
    format_span,
    moment,
    table,
    tall,
    to_html,
)
from hpctrain.rundir.display import format_size

_MOST_ROWS = 200


def overview(run: RunFacts) -> Html:
    """Return the main facts. Not collective."""
    return facts({"directory": run.path, **dict(_overview(run))})


def _overview(run: RunFacts) -> Iterator[tuple[str, Cell]]:
    used, status = run.efficiency, run.status
    if run.error:
        yield "why", Html(f'<span class="error">{to_html(run.error)}</span>')
    if run.began_at is None:
        yield "began", "it has not begun"
    else:
        yield "began", moment(run.began_at)
        yield "ended" if run.is_over else "last news", moment(run.until)
        yield "took" if run.is_over else "took so far", format_span(used.seconds)
    restarts = f", {run.num_restarts} restarts" if run.num_restarts != 1 else ", 1 restart"
    yield "attempts", f"{len(run.attempts)}{restarts if run.num_restarts else ''}"
    if run.slow_nodes:
        yield "slow nodes", Html("<br>".join(map(to_html, run.slow_nodes)))
    repeated = f", {run.num_repeated} of them made again" if run.num_repeated else ""
    yield "reports", f"{run.num_reports}{repeated}"
    if used.median_report_s is not None:
        yield "time between reports", f"{format_span(used.median_report_s)} (median)"
    if run.jobs:
        yield "Slurm jobs", ", ".join(run.jobs)
    if status is not None:
        yield "launcher", status.launcher or None
        yield "ranks", str(status.world_size) if status.world_size else None
        yield "nodes", compress_hosts(status.nodes) if status.nodes else None


def checkpoints(run: RunFacts, label: str) -> Html:
    """Return the checkpoints that are there. Not collective."""
    if not run.checkpoints:
        return Html(f"<p>{to_html(label)} has no complete checkpoint.</p>")
    largest = max(saved.size for saved in run.checkpoints) or 1
    shown = run.checkpoints[-_MOST_ROWS:]
    rows: list[list[Cell]] = [
        [
            saved.name,
            str(saved.report),
            str(saved.attempt),
            moment(saved.created_at),
            format_span(saved.took_s),
            str(saved.num_files),
            format_size(saved.size),
            Html(
                f'<div class="bar" aria-hidden="true"><span class="use size" '
                f'style="left:0;width:{100 * saved.size / largest:.2f}%"></span></div>'
            ),
        ]
        for saved in shown
    ]
    total = sum(saved.size for saved in run.checkpoints)
    reported = run.num_reported_checkpoints
    of = f" of {reported}" if reported > len(run.checkpoints) else ""
    last = f" The last {len(shown)} are shown." if len(shown) < len(run.checkpoints) else ""
    counted = Html(
        f"<p>{len(run.checkpoints)}{of} that were reported are there, with {format_size(total)}."
        f"{last}</p>"
    )
    listed = table(
        f"Checkpoints of {label}",
        [
            "name",
            "report",
            "attempt",
            "committed",
            "took",
            "files",
            "size",
            Html("size&nbsp;&rarr;"),
        ],
        rows,
        numeric=(1, 2, 4, 5, 6),
        style="sizes",
    )
    return Html(counted + tall(listed))


def configuration(run: RunFacts) -> Html:
    """Return what the run was begun with. Not collective."""
    plan = run.plan
    if not plan:
        return Html("<p>There is no plan.json that can be read.</p>")
    asked = {
        name: format_field(plan[name])
        for name in ("trainer", "backend", "argv", "cwd", "python", "site", "git")
        if plan.get(name) is not None
    }
    parts = [facts(asked)]
    for name, key in _NESTED:
        content = plan.get(key) if key != "directives" else _directives(plan)
        if isinstance(content, dict) and content:
            flat = flatten_fields(content)
            rows = [[field, "-" if v is None else format_field(v)] for field, v in flat.items()]
            parts.append(details(name, table(name, ["field", "value"], rows, style="described")))
    return Html("".join(parts))


_NESTED = (
    ("Versions", "versions"),
    ("ScalingConfig", "scaling_config"),
    ("RunConfig", "run_config"),
    ("Options of sbatch", "directives"),
)


def _directives(plan: object) -> object:
    launch = plan.get("launch_plan") if isinstance(plan, dict) else None
    return launch.get("directives") if isinstance(launch, dict) else None
