"""Who writes which rows: as a simple plan of objects has it, whatever ranks hold."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from hpctrain.bulk.state_file import StateFile
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.layout.balance import HeldRows, balance_rows
from hpctrain.torch.state.layout.held import HeldShards, decode_all
from hpctrain.torch.state.layout.shards import Shard
from hpctrain.torch.state.layout.share_out import Holders, SharedOut, share_out
from hpctrain.torch.state.state_dict.dtypes import PAIRS


@dataclass
class Rank:
    """What a rank holds."""

    shards: list[Shard] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)

    def held(self) -> HeldShards:
        return HeldShards.of(self.shards, aliases=self.aliases, whole=self.whole)


def _plan(ranks: list[Rank]) -> tuple[list[HeldShards], SharedOut]:
    """Plan as rank 0 does: of ranks that hold the same one sends it."""
    held = [rank.held() for rank in ranks]
    alike: dict[bytes, list[int]] = {}
    for number, its in enumerate(held):
        alike.setdefault(its.digest(), []).append(number)
    sent = [held[numbers[0]].encode() for numbers in alike.values()]
    everyone = [
        Holders(ranks=tuple(numbers), held=its)
        for numbers, its in zip(alike.values(), decode_all(sent), strict=True)
    ]
    return held, share_out(everyone)


def _expected(ranks: list[Rank]) -> tuple[list[StateFile], dict[str, Any], dict[str, str], Any]:
    """Return all files, and shapes, aliases and types, in order."""
    aliases, refused = dict[str, str](), set[str]()
    holders: dict[Shard, list[int]] = {}
    for number, rank in enumerate(ranks):
        for shard in rank.shards:
            holders.setdefault(shard, []).append(number)
            if 0 not in shard.sizes:
                other = rank.aliases.get(shard.name)
                if other is None or aliases.setdefault(shard.name, other) != other:
                    refused.add(shard.name)
    aliases = {name: other for name, other in aliases.items() if name not in refused}
    aliases = {name: other for name, other in aliases.items() if other not in aliases}
    whole = {aliases.get(name, name) for rank in ranks for name in rank.whole}
    written = [shard for shard in holders if shard.name not in aliases]
    shapes = {shard.name: shard.shape for shard in written}
    named, kept = set[str](), list[Shard]()
    for shard in written:
        if 0 not in shard.sizes or (0 in shard.shape and shard.name not in named):
            named.add(shard.name)
            kept.append(shard)
    rows = [
        HeldRows(
            holders=tuple(holders[shard][: 1 if shard.name in whole else None]),
            rows=shard.rows,
            row_bytes=shard.row_bytes,
        )
        for shard in kept
    ]
    chunks: list[list[Any]] = [[] for _ in ranks]
    for shard, ranges in zip(kept, balance_rows(rows, load=[0] * len(ranks)), strict=True):
        for part in ranges:
            chunks[part.rank].append(shard.chunk(part.start, part.stop))
    types = {shard.name: shard.torch_type for shard in kept if shard.torch_type}
    return [StateFile.plan(its) for its in chunks], shapes, aliases, types


def _any_ranks(chance: random.Random) -> list[Rank]:
    """Return ranks that hold tensors in all the ways that there are."""
    ranks = [Rank() for _ in range(chance.randint(1, 6))]
    earlier: list[tuple[str, Any, Any, Any]] = []
    for number in range(chance.randint(0, 25)):
        name = f"x.{chance.choice('äq')}.{number}"
        dtype, torch_type = chance.choice(
            [("F32", ""), ("BF16", ""), ("U8", "float8_e4m3fnuz"), ("F64", PAIRS)]
        )
        shape = tuple(chance.choice([0, 1, 2, 7, 300]) for _ in range(chance.randint(0, 3)))
        if torch_type == PAIRS:
            shape = (*shape, 2)
        kind = chance.choice(["everywhere", "sharded", "hybrid", "one"])
        if torch_type == PAIRS and len(shape) == 1:
            kind = "everywhere"
        target = None
        if earlier and chance.random() < 0.3:
            target, shape, (dtype, torch_type), kind = chance.choice(earlier)
        else:
            earlier.append((name, shape, (dtype, torch_type), kind))
        may_differ = chance.random() < 0.2
        # Of some ranks it is no alias.
        disagrees = chance.randrange(len(ranks)) if chance.random() < 0.2 else None
        for number_of_rank, rank in enumerate(ranks):
            place = _place(kind, shape, number_of_rank, len(ranks))
            if place is None:
                continue
            rank.shards.append(Shard(name, dtype, shape, *place, torch_type))
            if may_differ:
                rank.whole.append(name)
            if target is not None and number_of_rank != disagrees and 0 not in place[1]:
                rank.aliases[name] = target
    return ranks


def _place(
    kind: str, shape: tuple[int, ...], rank: int, ranks: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return offsets and sizes of a rank's shard; None if it has no part."""
    if kind == "one" and rank != ranks // 2:
        return None
    if kind in ("everywhere", "one") or not shape:
        return (0,) * len(shape), shape
    parts = ranks if kind == "sharded" else max(1, ranks // 2)
    each = math.ceil(shape[0] / parts)
    start = min(shape[0], rank % parts * each)
    stop = min(shape[0], start + each)
    # As of a DTensor: what is empty begins at the end.
    return (start, *(0,) * (len(shape) - 1)), (stop - start, *shape[1:])


def test_any_plan_is_that_of_the_simple_one() -> None:
    chance = random.Random(0)
    seen = Counter[str]()
    for _ in range(300):
        ranks = _any_ranks(chance)
        held, shared = _plan(ranks)
        files, shapes, aliases, types = _expected(ranks)
        layouts = [its.layout(rows) for its, rows in zip(held, shared.rows, strict=True)]
        assert layouts == files
        # In the index, too, they are in this order.
        for found, expected in (
            (shared.shapes, shapes),
            (shared.aliases, aliases),
            (shared.types, types),
        ):
            assert list(found.items()) == list(expected.items())
        parts = Counter(chunk.name for file in files for chunk in file.chunks)
        seen.update(aliases=len(aliases), types=len(types), cut=sum(n > 1 for n in parts.values()))
    assert min(seen.values()) > 100, seen


def _sharded(rank: int, ranks: int, *, shape: tuple[int, ...] = (8, 3), dtype: str = "F32") -> Rank:
    offsets, sizes = _place("sharded", shape, rank, ranks) or ((), ())
    return Rank([Shard("x.w", dtype, shape, offsets, sizes)])


def test_another_shape_or_type_on_another_rank_is_refused() -> None:
    others = {r"float32\[9, 3\]": {"shape": (9, 3)}, r"float16\[8, 3\]": {"dtype": "F16"}}
    for called, other in others.items():
        ranks = [_sharded(0, 2), _sharded(1, 2, **other)]  # type: ignore[arg-type]
        message = rf"x\.w is float32\[8, 3\] on one rank and {called} on another"
        with pytest.raises(CheckpointError, match=message):
            _plan(ranks)


def test_a_tensor_of_which_no_rank_holds_a_part_is_refused() -> None:
    message = r"the ranks hold 18 elements of x\.w, which has shape \[8, 3\]"
    with pytest.raises(CheckpointError, match=message):
        _plan([_sharded(rank, 4) for rank in range(3)])


def test_ranks_with_the_same_tensors_keep_their_names_once() -> None:
    held = [_sharded(rank, 4).held() for rank in range(4)]
    decoded = decode_all(its.encode() for its in held)
    assert decoded == held
    assert len({id(its.tensors) for its in decoded}) == 1
    assert len({its.digest() for its in held}) == 4


def test_the_order_of_tensors_is_part_of_their_digest() -> None:
    shards = [Shard(name, "F32", (2,), (0,), (2,)) for name in "ab"]
    digests = {Rank(its).held().digest() for its in (shards, shards[::-1], shards[:1])}
    assert len(digests) == 3
