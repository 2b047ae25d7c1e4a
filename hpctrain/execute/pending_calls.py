"""Which collective ranks wait in, and which ranks never called it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.rundir.display import list_ranks
from hpctrain.worker.group_record import Call, GroupRecord

_MOST_LINES = 4
_MOST_SHAPES = 2


@dataclass(frozen=True)
class Explanation:
    """Why ranks wait for each other."""

    lines: tuple[str, ...]
    """For people; empty if nothing is known."""
    missing: tuple[int, ...] = ()
    """Ranks that others wait for, and that wait in no collective themselves."""


@dataclass(frozen=True)
class _Waiting:
    """Ranks of one group whose oldest unfinished call is the same."""

    group: GroupRecord
    call: Call
    ranks: tuple[int, ...]


def explain_pending_calls(
    records: Mapping[int, Sequence[GroupRecord]], where: Mapping[int, str]
) -> Explanation:
    """Compare what ranks have recorded.

    Not collective.

    Parameters
    ----------
    records
        What ranks have recorded, by world rank. A rank that did not answer is left out.
    where
        Where a rank is: ``train.py:88, in load``.
    """
    waiting = _waiting(records)
    if not waiting:
        return Explanation(())
    busy = {rank for each in waiting for rank in each.ranks}
    # Lines about ranks that wait in no collective first: there the cause is.
    causes: list[str] = []
    effects: list[str] = []
    missing: set[int] = set()
    for first in waiting:
        absent, unknown = _absent(first, waiting, records)
        described = f"{_ranks(first.ranks, 'wait')} in {_describe(first.call, first.group)}"
        unlike = [w for w in waiting if _same_call_of_other_kind(first, w)]
        if unlike:
            # Each of them once.
            if all(first.ranks[0] < other.ranks[0] for other in unlike):
                causes.append(_describe_mismatch(first, unlike))
            continue
        if absent:
            missing |= absent - busy
            line = f"{described}; {_describe_absent(absent, where, waiting)}"
            (causes if absent - busy else effects).append(line)
        elif unknown:
            causes.append(f"{described}; {_ranks(unknown, 'do')} not answer")
        elif first.call.is_p2p:
            effects.append(described)
        else:
            effects.append(
                f"{described}, and every rank of the group has called it: look at the network, "
                f"and at the devices of these ranks"
            )
    if len(effects) > 1 and not causes:
        effects.append(
            "they wait for each other: every rank must call the collectives of its groups in the "
            "same order"
        )
    return Explanation((*causes, *effects)[:_MOST_LINES], tuple(sorted(missing)))


def _waiting(records: Mapping[int, Sequence[GroupRecord]]) -> list[_Waiting]:
    """Return who waits where; those that others may wait for come first."""
    found: dict[tuple[str, Call], list[int]] = defaultdict(list)
    groups: dict[str, GroupRecord] = {}
    for rank, own in records.items():
        for group in own:
            if group.pending is not None:
                key = f"{group.name} {group.ranks}"
                groups[key] = group
                found[key, group.pending].append(rank)
    return [
        _Waiting(groups[key], call, tuple(sorted(ranks)))
        for (key, call), ranks in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1].number, item[1][0])
        )
    ]


def _absent(
    first: _Waiting, waiting: Sequence[_Waiting], records: Mapping[int, Sequence[GroupRecord]]
) -> tuple[set[int], set[int]]:
    """Return who has not called what ranks wait in, and of whom that is not known."""
    if first.call.is_p2p:
        return set(), set()
    members = set(first.group.ranks or records)
    absent = set()
    for rank in members & records.keys():
        calls = [g.calls for g in records[rank] if g.name == first.group.name]
        if max(calls, default=0) < first.call.number:
            absent.add(rank)
    return absent, members - records.keys()


def _same_call_of_other_kind(first: _Waiting, other: _Waiting) -> bool:
    return (
        other.group.name == first.group.name
        and other.group.ranks == first.group.ranks
        and other.call.number == first.call.number
        and other.call.is_p2p == first.call.is_p2p
        and other.call != first.call
    )


def _describe_mismatch(first: _Waiting, unlike: Sequence[_Waiting]) -> str:
    calls = [f"{_ranks(w.ranks, 'call')} {_describe(w.call, w.group)}" for w in (first, *unlike)]
    return (
        f"{', but '.join(calls)}: every rank must make the same calls with the same shapes in the "
        f"same order"
    )


def _describe_absent(
    absent: set[int], where: Mapping[int, str], waiting: Sequence[_Waiting]
) -> str:
    elsewhere = {rank: each for each in waiting for rank in each.ranks if rank in absent}
    parts = []
    by_place: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(absent):
        if (other := elsewhere.get(rank)) is not None:
            line = f": {where[rank]}" if where.get(rank) else ""
            place = f"waits in {_describe(other.call, other.group)} instead{line}"
        else:
            place = where.get(rank, "")
        by_place[place].append(rank)
    for place, ranks in list(by_place.items())[:_MOST_LINES]:
        one = len(ranks) == 1
        who = f"rank {ranks[0]}" if one else f"ranks {list_ranks(ranks)}"
        if place.startswith("waits"):
            parts.append(f"{who} {place if one else place.replace('waits', 'wait', 1)}")
        else:
            parts.append(f"{who} never called it{f': {place}' if place else ''}")
    return "; ".join(parts)


def _describe(call: Call, group: GroupRecord) -> str:
    """Return a call in words.

    Examples
    --------
    >>> group = GroupRecord(name="0", description="dp", ranks=(0, 1), calls=4, pending=None)
    >>> _describe(Call(op="all_reduce", number=4, shapes=((2, 3),), dtypes=("float",)), group)
    'all_reduce #4 (float [2, 3], process group dp)'
    """
    shapes = [
        f"{dtype} {list(shape)}" for dtype, shape in zip(call.dtypes, call.shapes, strict=False)
    ]
    if len(shapes) > _MOST_SHAPES:
        shapes = [*shapes[:_MOST_SHAPES], f"{len(shapes) - _MOST_SHAPES} more"]
    name = group.description or group.name
    details = [*shapes, f"process group {name}"]
    return f"{call.op} #{call.number} ({', '.join(details)})"


def _ranks(ranks: Sequence[int] | set[int], verb: str) -> str:
    """Return ranks as the subject of a sentence, and its verb."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]} {'does' if verb == 'do' else verb + 's'}"
    return f"ranks {list_ranks(ranks)} {verb}"
