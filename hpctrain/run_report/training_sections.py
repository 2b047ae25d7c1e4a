"""What the training of a run consists of, as rows and words of a page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpctrain.run_report.markup import UNKNOWN, Cell, Html, format_span, percent
from hpctrain.run_report.shares import Efficiency
from hpctrain.run_report.time_use import Use
from hpctrain.run_report.training_parts import Activity, TrainingPart

MEANINGS = {
    Activity.COMPUTE: "the rest: the training function ran, and waited for nothing that is seen",
    Activity.DATA: "its loop waited for the next batch",
    Activity.CHECKPOINT: "it was in report(), or saved what it reported next, in checkpoint_dir()",
    Activity.COLLECTIVE: "it waited for other ranks: in the last collective before a step of the "
    "optimizer, of which some are looked at, and in hpctrain.collective",
}
WHY_UNSEEN = {
    Activity.DATA: "it read data by other means than an iterator of hpctrain",
    Activity.CHECKPOINT: "the ranks did not report it",
    Activity.COLLECTIVE: "no time of a collective is known, or it ran on GPUs beside the loop",
}


def has_training(used: Efficiency) -> bool:
    """Return whether there was a training whose parts could be known. Not collective."""
    return any(share.use is Use.TRAINING for share in used.shares)


def part_rows(used: Efficiency, *, num_hours: int) -> Iterator[Sequence[Cell]]:
    """Give a row for each part of the training. Not collective.

    Parameters
    ----------
    num_hours
        Columns of hours, which stay empty.
    """
    for each in used.parts:
        name = each.part.value
        seen = each.seconds is not None
        yield (
            Html(f'<span class="swatch {name}"></span>training: {name}'),
            format_span(each.seconds) if seen else "not seen",
            percent(each.seconds or 0.0, used.seconds) if seen else "",
            *[""] * num_hours,
            describe_part(each),
        )


def describe_part(each: TrainingPart) -> str:
    """Return what a part is, who waited most, and where it is not seen. Not collective."""
    if each.seconds is None:
        return f"not seen, and part of compute: {WHY_UNSEEN[each.part]}"
    text = MEANINGS[each.part]
    if each.part is not Activity.COMPUTE:
        text += "; of rank 0 alone, in part" if each.is_of_rank_0 else "; mean of the ranks"
    if each.most is not None and each.least is not None:
        (most, who), (least, other) = each.most, each.least
        text += (
            f", in attempt {each.attempt} from {format_span(least)} (rank {other}) to "
            f"{format_span(most)} (rank {who})"
        )
    if each.unseen_s:
        some = ", or only in part" if each.part is Activity.COLLECTIVE else ""
        text += f"; in {format_span(each.unseen_s)} of the training it is not seen{some}"
    return text


def unknown_parts(used: Efficiency) -> Html:
    """Return why there are no parts, if there was a training; else nothing. Not collective."""
    if used.parts or not has_training(used):
        return Html("")
    return Html(
        "<p>What the training consists of (compute, data, checkpoints, collectives) is not known: "
        "the ranks did not report what they waited for, as in runs of earlier versions.</p>"
    )


def part_cells(runs: Sequence[Efficiency]) -> Iterator[list[Cell]]:
    """Give a row for each part, with a column for each run. Not collective."""
    by_run = [{each.part: each for each in used.parts} for used in runs]
    if not any(by_run):
        return
    for part in Activity:
        cells: list[Cell] = [f"training: {part.value}"]
        for used, parts in zip(runs, by_run, strict=True):
            if part not in parts:
                cells.append(UNKNOWN if has_training(used) else "-")
            elif (seconds := parts[part].seconds) is None:
                cells.append("not seen")
            else:
                cells.append(f"{format_span(seconds)} ({percent(seconds, used.seconds)})")
        yield cells


def drawn_parts(used: Efficiency) -> list[tuple[str, float]]:
    """Return class and seconds of what is drawn for the training. Not collective."""
    return [(each.part.value, each.seconds) for each in used.parts if each.seconds]


def in_words(used: Efficiency) -> str:
    """Return the parts in a few words; empty without any. Not collective."""
    words = [
        f"{each.part.value} {percent(each.seconds, used.seconds)}"
        for each in used.parts
        if each.seconds is not None
    ]
    return f" ({', '.join(words)})" if words else ""
