"""The sections of a page on where the time of a run went. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpctrain.host_list import compress_hosts
from hpctrain.run_report.facts import RunFacts
from hpctrain.run_report.markup import (
    UNKNOWN,
    Cell,
    Html,
    bar,
    details,
    format_hours,
    format_span,
    moment,
    percent,
    table,
    tall,
    to_html,
)
from hpctrain.run_report.time_use import Interval, Use
from hpctrain.run_report.training_parts import Activity
from hpctrain.run_report.training_sections import (
    drawn_parts,
    in_words,
    part_cells,
    part_rows,
    unknown_parts,
)
from hpctrain.rundir.announcement import describe_start
from hpctrain.rundir.attempts import AttemptRecord

MEANINGS = {
    Use.QUEUE: "a job waited, from its submission or requeue to the start of its executor",
    Use.START: "from the start of an executor or attempt to its first report: launch, imports, "
    "loading, and the first step",
    Use.TRAINING: "between reports that were made for the first time",
    Use.REPEATED: "between reports that an earlier attempt had made: it resumed from before them",
    Use.LOST: "from the last report of an attempt to the failure that ended it",
    Use.ENDING: "from the last report to the end of the attempt, or to the last news of it",
    Use.RESTART: "from the end of an attempt to the next one in the same job",
    Use.STOPPED: "nothing ran and no job waited, until fit() was called again",
    Use.OTHER: "the rest, and what the files do not show, such as an attempt without a report",
}
_MOST_ROWS = 200
# Of all the time, of what has a row of its own.
_SHORTEST = 1 / 500


def time_use(runs: Sequence[RunFacts], labels: Sequence[str]) -> Html:
    """Return where the time of the runs went. Not collective."""
    parts = [_side_by_side(runs, labels)] if len(runs) > 1 else []
    for run, label in zip(runs, labels, strict=True):
        if not run.intervals:
            why = "It has not begun." if run.began_at is None else "The ledger contains nothing."
            parts.append(Html(f"<h3>{to_html(label)}</h3><p>{why}</p>"))
            continue
        if len(runs) > 1:
            parts.append(Html(f"<h3>{to_html(label)}</h3>"))
        parts += [_stacked(run), _table_of_uses(run, label)]
        parts += [unknown_parts(run.efficiency), _hours(run)]
    return Html("".join(parts))


def _side_by_side(runs: Sequence[RunFacts], labels: Sequence[str]) -> Html:
    """Return a table of all runs, one column each."""
    found = [{share.use: share.seconds for share in run.efficiency.shares} for run in runs]
    totals = [run.efficiency.seconds for run in runs]
    rows: list[list[Cell]] = [
        [
            use.value,
            *(
                f"{format_span(seconds[use])} ({percent(seconds[use], total)})"
                if use in seconds
                else "-"
                for seconds, total in zip(found, totals, strict=True)
            ),
        ]
        for use in Use
        if any(use in seconds for seconds in found)
    ]
    used = [run.efficiency for run in runs]
    place = next((n for n, row in enumerate(rows, 1) if row[0] == Use.TRAINING.value), len(rows))
    rows[place:place] = part_cells(used)
    rows.append(["all", *(format_span(total) if total else None for total in totals)])
    kinds = [
        ("core-hours", [each.core_hours for each in used]),
        ("of these for training", [each.useful[0] for each in used]),
        ("of these lost", [each.lost[0] for each in used]),
        ("GPU-hours", [each.gpu_hours for each in used]),
        ("of these for training", [each.useful[1] for each in used]),
        ("of these lost", [each.lost[1] for each in used]),
    ]
    if not any(kinds[3][1]):
        kinds = kinds[:3]
    for name, hours in kinds:
        known = [h if share.shares else None for h, share in zip(hours, used, strict=True)]
        rows.append([name, *map(format_hours, known)])
    numeric = range(1, len(runs) + 1)
    return table("Where the time of the runs went", ["use", *labels], rows, numeric=numeric)


def _stacked(run: RunFacts) -> Html:
    total, at, drawn, words = run.efficiency.seconds, 0.0, [], []
    for share in run.efficiency.shares:
        is_split = share.use is Use.TRAINING and bool(run.efficiency.parts)
        kinds = drawn_parts(run.efficiency) if is_split else [(share.use.value, share.seconds)]
        for kind, seconds in kinds:
            width = 100 * seconds / total if total else 0.0
            drawn.append((kind, at, width))
            at += width
        parts = in_words(run.efficiency) if is_split else ""
        words.append(f"{share.use.value} {percent(share.seconds, total)}{parts}")
    return bar(drawn, ", ".join(words))


def _table_of_uses(run: RunFacts, label: str) -> Html:
    used = run.efficiency
    has_gpus = used.gpu_hours is None or used.gpu_hours > 0
    rows: list[Sequence[Cell]] = []
    for share in used.shares:
        is_split = share.use is Use.TRAINING and bool(used.parts)
        swatch = "" if is_split else f'<span class="swatch {share.use.value}"></span>'
        rows.append(
            [
                Html(f"{swatch}{share.use.value}"),
                format_span(share.seconds),
                percent(share.seconds, used.seconds),
                format_hours(share.core_hours),
                *([format_hours(share.gpu_hours)] if has_gpus else []),
                MEANINGS[share.use],
            ]
        )
        if is_split:
            rows += part_rows(used, num_hours=1 + has_gpus)
    if run.num_reported_checkpoints or run.checkpoints:
        unknown: list[Cell] = [None] * (3 + has_gpus)
        rows.append(["checkpoints", *unknown, _checkpoint_time(run)])
    gpus = [format_hours(used.gpu_hours)] if has_gpus else []
    rows.append(["all", format_span(used.seconds), "", format_hours(used.core_hours), *gpus, ""])
    columns = ["use", "time", "share", "core-hours", *(["GPU-hours"] if has_gpus else []), "what"]
    return table(
        f"Where the time of {label} went",
        columns,
        rows,
        numeric=range(1, 4 + has_gpus),
        style="described",
    )


def _hours(run: RunFacts) -> Html:
    used = run.efficiency
    if used.core_hours is None:
        return Html(
            "<p>Core-hours and GPU-hours: not known, as no file shows how many CPUs and GPUs the "
            "ranks of every attempt had.</p>"
        )
    if used.has_unknown_attempts:
        return Html(
            "<p>How many of the core-hours and GPU-hours were useful, and how many lost, is not "
            "known: of an attempt there is no report, or no end.</p>"
        )
    lines = []
    kinds = (("Core-hours", 0, used.core_hours), ("GPU-hours", 1, used.gpu_hours))
    for name, place, total in kinds:
        useful, lost = used.useful[place], used.lost[place]
        if not total or useful is None or lost is None:
            continue
        lines.append(
            f"{name}: {format_hours(total)} in all, {format_hours(useful)} "
            f"({percent(useful, total)}) for training, {format_hours(lost)} "
            f"({percent(lost, total)}) lost to restarts (repeated, lost and restart)."
        )
    rest = (
        "They are those of the ranks, while an executor held them; what Slurm allocates beyond "
        "that, such as the rest of an exclusive node, is in no file of the run."
    )
    return Html(f"<p>{' '.join(lines)} {rest}</p>") if lines else Html("")


def _checkpoint_time(run: RunFacts) -> str:
    known = [saved.took_s for saved in run.checkpoints if saved.took_s is not None]
    took = f"from report() to the commit, {len(known)} took {format_span(sum(known))} in all"
    if any(each.part is Activity.CHECKPOINT and each.seconds for each in run.efficiency.parts):
        of_loop = "what held the training up, saving before report() included, is above"
        return f"{took}; {of_loop}" if known else "how long the commits took is not known"
    return (
        "part of the training: the files do not show whether the ranks waited for a checkpoint "
        f"(SYNC), or trained meanwhile (ASYNC){f'; {took}' if known else ''}"
    )


def timeline(run: RunFacts, label: str) -> Html:
    """Return what the run did when, and why its attempts ended. Not collective."""
    parts = [Html("<p>There was no attempt yet.</p>")]
    if rows := list(_timeline_rows(run)):
        columns: list[Cell] = ["what", Html("when&nbsp;&rarr;"), "took", "began"]
        shown, left_out = _middle_left_out(rows)
        drawn = table(f"Timeline of {label}", columns, shown, numeric=(2,), style="timeline")
        parts = [tall(drawn), left_out]
    if run.attempts:
        columns = ["attempt", "why it ended, and what followed", "from", "to report", "job"]
        shown, left_out = _middle_left_out([_attempt(record, run) for record in run.attempts])
        caption = f"Attempts of {label}"
        columns = [*columns, "nodes"]
        listed = table(caption, columns, shown, numeric=(3,), style="attempts")
        parts += [tall(listed), left_out]
    if run.before:
        before = "".join(f"<li>{moment(at)} {to_html(what)}</li>" for at, what in run.before)
        parts.append(details("Before the first attempt", Html(f"<ul>{before}</ul>")))
    return Html("".join(parts))


def _middle_left_out(rows: Sequence[Sequence[Cell]]) -> tuple[Sequence[Sequence[Cell]], Html]:
    """Return the first and the last rows of a long table, and a sentence on the others."""
    if (left_out := len(rows) - _MOST_ROWS) <= 0:
        return rows, Html("")
    first = _MOST_ROWS // 4
    shown = [*rows[:first], *rows[first + left_out :]]
    return shown, Html(f"<p>{left_out} rows after the first {first} are left out.</p>")


def _timeline_rows(run: RunFacts) -> Iterator[Sequence[Cell]]:
    if run.began_at is None or run.until is None:
        return
    begin, span = run.began_at, max(run.until - run.began_at, 1e-9)
    for group in _groups(run.intervals):
        attempt, took = group[0].attempt, group[-1].end - group[0].begin
        # What is too short to be seen is in the sums.
        if attempt is None and took < span * _SHORTEST:
            continue
        parts = [
            (
                each.use.value,
                100 * (each.begin - begin) / span,
                max(0.3, 100 * each.seconds / span),
            )
            for each in group
        ]
        words = ", ".join(f"{each.use.value} {format_span(each.seconds)}" for each in group)
        name = group[0].use.value if attempt is None else f"attempt {attempt}"
        yield name, bar(parts, words), format_span(took), moment(group[0].begin)


def _groups(intervals: Sequence[Interval]) -> list[list[Interval]]:
    """Return the intervals of each attempt together, and what is alike between two of them."""
    groups: list[list[Interval]] = []
    for interval in intervals:
        before = groups[-1][-1] if groups else None
        is_of_attempt = interval.attempt is not None
        if (
            before is not None
            and before.attempt == interval.attempt
            and (is_of_attempt or before.use is interval.use)
        ):
            groups[-1].append(interval)
        else:
            groups.append([interval])
    return groups


def _attempt(record: AttemptRecord, run: RunFacts) -> Sequence[Cell]:
    lines = [to_html(record.cause) if record.cause else _no_end(record, run)]
    lines += [to_html(what) for _, what in record.notes]
    shown = "".join(f"<li>{line}</li>" for line in lines)
    return (
        str(record.attempt),
        Html(f'<ul class="plain">{shown}</ul>'),
        describe_start(record.resumed_from),
        UNKNOWN if record.reports is None else str(record.reports),
        record.job_id or "-",
        compress_hosts(record.nodes) if record.nodes else None,
    )


def _no_end(record: AttemptRecord, run: RunFacts) -> Html:
    """Return what is known of the end of an attempt of which the ledger has none."""
    if run.is_over or record is not run.attempts[-1]:
        return Html("unknown: its executor was killed before it could write why, or could not")
    return Html(
        f"none is recorded: it runs, or its executor was killed after {moment(run.until)}, the "
        f"last news; hpctrain status shows which"
    )
