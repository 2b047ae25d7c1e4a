"""What the training consists of: compute, and waits for data, checkpoints and other ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpctrain.run_report.time_use import Interval, Use


class Activity(str, Enum):
    """What the ranks did while they trained."""

    COMPUTE = "compute"
    """The rest, and what is not seen of the others."""
    DATA = "data"
    """Their loops waited for the next batch of an iterator of hpctrain."""
    CHECKPOINT = "checkpoint"
    """They were in ``report()``, or wrote what it reported next."""
    COLLECTIVE = "collective"
    """They waited for other ranks."""


WAITS = (Activity.DATA, Activity.CHECKPOINT, Activity.COLLECTIVE)


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """A share of the training that one rank waited."""

    share: float
    rank: int


@dataclass(frozen=True, kw_only=True)
class Wait:
    """How much of its training an attempt waited for one thing."""

    share: float
    """Mean of the ranks."""
    most: RankShare | None
    least: RankShare | None


@dataclass(frozen=True, kw_only=True)
class AttemptWaits:
    """What is known of the waits of an attempt."""

    waits: Mapping[Activity, Wait]
    """Those that are known."""
    is_of_rank_0: bool = False
    """Whether it is not known of the other ranks."""
    lacks_collectives: bool = False
    """Whether the only collectives that are seen are hpctrain's own."""


@dataclass(frozen=True, kw_only=True)
class TrainingPart:
    """What one part of the training took, in seconds a rank."""

    part: Activity
    seconds: float | None
    """None where it is seen in no attempt."""
    unseen_s: float = 0.0
    """Seconds of the training in which it is not seen, or not all of it: that counts as compute."""
    most: tuple[float, int] | None = None
    """Seconds of the rank with the most, and that rank, in `attempt`; None with one rank."""
    least: tuple[float, int] | None = None
    """As `most`, of the rank with the least."""
    attempt: int | None = None
    """The attempt in which it took most."""
    is_of_rank_0: bool = False
    """Whether, of an attempt at least, it is that of rank 0 and not the mean of the ranks."""


def read_waits(
    events: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]], *, has_gpus: bool
) -> dict[int, AttemptWaits]:
    """Return what is known of the waits of each attempt. Not collective.

    It is in the ledger once the attempt has ended. Until then, and if its executor was killed, only
    the waits of rank 0 are known, from its reports.

    Parameters
    ----------
    events
        The ledger.
    lines
        All lines of the metrics.
    has_gpus
        Whether ranks use GPUs. They call collectives long before their GPU does, so the times
        of these calls are no waits then.
    """
    found = {}
    for event in events:
        if event["event"] == "attempt-ended" and isinstance(event.get("waits"), dict):
            waits = _of_ledger(event["waits"], has_gpus=has_gpus)
            if waits is not None:
                found[event["attempt"]] = waits
    for attempt, waits in _of_rank_0(lines).items():
        found.setdefault(attempt, waits)
    return found


def split_training(
    intervals: Iterable[Interval], waits: Mapping[int, AttemptWaits]
) -> tuple[TrainingPart, ...]:
    """Return what the training consists of; empty if nothing is known of it. Not collective.

    The seconds of all parts make those of the training.

    Parameters
    ----------
    intervals
        As `split_time` returns them.
    waits
        As `read_waits` returns them.
    """
    trained: dict[int, float] = {}
    for each in intervals:
        if each.use is Use.TRAINING and each.attempt is not None:
            trained[each.attempt] = trained.get(each.attempt, 0.0) + each.seconds
    if not any(attempt in waits for attempt in trained):
        return ()
    total = math.fsum(trained.values())
    parts = [_add(part, trained, waits) for part in WAITS]
    compute = max(0.0, total - math.fsum(each.seconds or 0.0 for each in parts))
    return TrainingPart(part=Activity.COMPUTE, seconds=compute), *parts


def _add(
    part: Activity, trained: Mapping[int, float], waits: Mapping[int, AttemptWaits]
) -> TrainingPart:
    seconds: dict[int, float] = {}
    is_of_rank_0, unseen = False, 0.0
    for attempt, length in trained.items():
        found = waits.get(attempt)
        if found is None or part not in found.waits:
            unseen += length
            continue
        is_of_rank_0 = is_of_rank_0 or found.is_of_rank_0
        if part is Activity.COLLECTIVE and found.lacks_collectives:
            unseen += length
        seconds[attempt] = found.waits[part].share * _scale(found) * length
    if not seconds:
        return TrainingPart(part=part, seconds=None, unseen_s=unseen)
    # The last of several that took as long.
    longest = max(reversed(seconds), key=seconds.__getitem__)
    most, least = _extremes(waits[longest], part, trained[longest])
    return TrainingPart(
        part=part,
        seconds=math.fsum(seconds.values()),
        unseen_s=unseen,
        most=most,
        least=least,
        attempt=longest,
        is_of_rank_0=is_of_rank_0,
    )


def _scale(waits: AttemptWaits) -> float:
    """Return what makes the shares of an attempt no more than all of it.

    Clocks differ a little, and a sample is no sum.
    """
    return 1 / max(1.0, math.fsum(each.share for each in waits.waits.values()))


def _extremes(
    waits: AttemptWaits, part: Activity, length: float
) -> tuple[tuple[float, int], tuple[float, int]] | tuple[None, None]:
    """Return the seconds of the ranks with the most and the least, if these are two."""
    most, least = waits.waits[part].most, waits.waits[part].least
    if waits.is_of_rank_0 or most is None or least is None or most.rank == least.rank:
        return None, None
    scale = _scale(waits)
    return (most.share * scale * length, most.rank), (least.share * scale * length, least.rank)


def _of_ledger(content: Mapping[str, Any], *, has_gpus: bool) -> AttemptWaits | None:
    """Return what the executor has added up; None if it is damaged."""
    seconds = content.get("seconds")
    if not _is_amount(seconds) or not seconds:
        return None
    found = {}
    for part in WAITS:
        if (wait := _wait(content.get(part.value), seconds)) is not None:
            found[part] = wait
    own = found.pop(Activity.COLLECTIVE, None)
    steps = None if has_gpus else _wait(content.get("steps"), 1.0)
    is_alone = content.get("ranks") == 1
    if steps is not None:
        # Those of torch, and hpctrain's own, which are not in the last collective of a step.
        found[Activity.COLLECTIVE] = steps if own is None or not own.share else _sum(own, steps)
    elif own is not None and (own.share > 0 or is_alone):
        found[Activity.COLLECTIVE] = own
    return AttemptWaits(waits=found, lacks_collectives=steps is None and not is_alone)


def _sum(one: Wait, other: Wait) -> Wait:
    """Add two kinds of waits, of each of which it is known who had the most and the least.

    Where that is not the same rank, the rank with the most of both is unknown.
    """

    def add(a: RankShare | None, b: RankShare | None) -> RankShare | None:
        if a is None or b is None or a.rank != b.rank:
            return None
        return RankShare(share=a.share + b.share, rank=a.rank)

    most, least = add(one.most, other.most), add(one.least, other.least)
    return Wait(share=one.share + other.share, most=most, least=least)


def _wait(content: Any, seconds: float) -> Wait | None:
    if not isinstance(content, dict):
        return None
    mean: Any = content.get("mean")
    if not _is_amount(mean):
        return None
    most, least = (_rank_share(content.get(name), seconds) for name in ("most", "least"))
    if most is None or least is None or most.share < least.share:
        return None
    return Wait(share=min(1.0, mean / seconds), most=most, least=least)


def _rank_share(content: Any, seconds: float) -> RankShare | None:
    if not isinstance(content, list) or len(content) != 2:
        return None
    amount, rank = content
    if not _is_amount(amount) or type(rank) is not int or rank < 0:
        return None
    return RankShare(share=min(1.0, amount / seconds), rank=rank)


def _is_amount(value: Any) -> bool:
    # No run lasts so long. Whole numbers may be larger than any float.
    return type(value) in (int, float) and 0 <= value < 1e15


def _of_rank_0(lines: Iterable[Mapping[str, Any]]) -> dict[int, AttemptWaits]:
    by_attempt: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_attempt.setdefault(line["attempt"], []).append(line)
    found = {}
    known = -math.inf
    for attempt, own in sorted(by_attempt.items()):
        again = [line for line in own if line["report"] <= known]
        waits = _between(again[-1] if again else own[0], own[-1])
        if waits is not None:
            found[attempt] = waits
        known = max(known, *(line["report"] for line in own))
    return found


def _between(first: Mapping[str, Any], last: Mapping[str, Any]) -> AttemptWaits | None:
    before, after = _waited(first), _waited(last)
    seconds = last["time"] - first["time"]
    if before is None or after is None or seconds <= 0:
        return None
    found = {}
    # Of collectives it has only those of hpctrain's own.
    for part, begin, end in zip(WAITS[:2], before, after, strict=False):
        if end is not None:
            share = min(1.0, max(0, end - (begin or 0)) / 1e6 / seconds)
            rank_0 = RankShare(share=share, rank=0)
            found[part] = Wait(share=share, most=rank_0, least=rank_0)
    return AttemptWaits(waits=found, is_of_rank_0=True)


def _waited(line: Mapping[str, Any]) -> Sequence[int | None] | None:
    found = line.get("waited")
    if not isinstance(found, list) or len(found) != len(WAITS):
        return None
    return found if all(each is None or _is_amount(each) for each in found) else None
