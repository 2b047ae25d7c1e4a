"""`share_out`: who writes which rows, given what all ranks hold.

One rank plans for all of them, and thousands of ranks hold millions of shards. So a shard is some
bytes here, and what many of them have in common is computed once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from hpctrain.errors import CheckpointError
from hpctrain.torch.state.layout.balance import HeldRows, balance_rows
from hpctrain.torch.state.layout.held import HeldShards, HeldTensors, Kind, Rows, decode_all
from hpctrain.torch.state.layout.shards import Shard

# A tensor's number among all, of which a shard is some place.
_KEY_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Holders:
    """Ranks that hold the same."""

    ranks: tuple[int, ...]
    """Ascending."""
    held: HeldShards


def holders_of(digests: Sequence[bytes], contents: Sequence[bytes]) -> list[Holders]:
    """Return what all ranks hold, in the order of the lowest ones. Not collective.

    Parameters
    ----------
    digests
        Of what each rank holds, by rank.
    contents
        What it encoded, by rank: of those that hold the same, only that of the lowest is read.
    """
    alike: dict[bytes, list[int]] = {}
    for rank, digest in enumerate(digests):
        alike.setdefault(digest, []).append(rank)
    held = decode_all(contents[its[0]] for its in alike.values())
    return [
        Holders(ranks=tuple(its), held=each) for its, each in zip(alike.values(), held, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class SharedOut:
    """Who writes what."""

    rows: Sequence[Rows]
    """By rank: of the shards that it holds."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of the whole tensors, by name."""
    aliases: Mapping[str, str]
    """Names of tensors that are another one."""
    types: Mapping[str, str]
    """What torch calls the type of a tensor, by name, where safetensors has none."""


def share_out(everyone: Sequence[Holders]) -> SharedOut:
    """Return who writes which rows, so that each byte is written once. Not collective.

    Parameters
    ----------
    everyone
        All ranks, in the order of the lowest ones that hold the same.

    Raises
    ------
    CheckpointError
        If ranks have other types or shapes of a tensor, or not all of it.
    """
    aliases = _agreed_aliases(everyone)
    tensors = _tensors(everyone, aliases)
    shapes = _checked_shapes(tensors)
    tables = _tables(everyone, tensors)
    numbers = {rank: tables[its.held.tensors].numbers for its in everyone for rank in its.ranks}
    first, several = _holders(everyone, tables)
    several_ranks = cache(lambda those: tuple(sorted(chain(*(everyone[i].ranks for i in those)))))
    load, types = [0] * len(numbers), dict[str, str]()
    # Of each rank: where each of its chunks comes among those of all, and as of `Rows`.
    ordered = [array("q") for _ in numbers]
    shared: list[tuple[int, bytes]] = []
    shared_rows: list[HeldRows] = []
    for order, (shard, holder) in enumerate(first.items()):
        key = shard[:_KEY_BYTES]
        tensor = tensors[key]
        rows, row_bytes, elements = tensor.extent(shard)
        if not tensor.takes(elements):
            continue
        if tensor.kind.torch_type:
            types[tensor.kind.name] = tensor.kind.torch_type
        who = everyone[holder].ranks
        if tensor.is_whole:
            who = who[:1]
        elif shard in several:
            who = several_ranks(tuple(several[shard]))
        if len(who) == 1:
            (rank,) = who
            load[rank] += rows * row_bytes
            ordered[rank].extend((order, numbers[rank][key], 0, rows))
        else:
            shared.append((order, key))
            shared_rows.append(HeldRows(holders=who, rows=rows, row_bytes=row_bytes))
    for tensor in tensors.values():
        tensor.check_complete()
    for (order, key), ranges in zip(shared, balance_rows(shared_rows, load=load), strict=True):
        for part in ranges:
            number = numbers[part.rank][key]
            ordered[part.rank].extend((order, number, part.start, part.stop))
    rows_of = [_in_order(each) for each in ordered]
    return SharedOut(rows=rows_of, shapes=shapes, aliases=aliases, types=types)


class _Tensor:
    """What ranks hold of a tensor of one type and shape.

    Parameters
    ----------
    kind
        Its name, type and shape.
    is_whole
        Whether ranks may have it with other values, so that the lowest writes all of its.
    """

    __slots__ = ("_elements", "_extents", "_held", "_is_taken", "_sizes", "is_whole", "kind")

    def __init__(self, kind: Kind, *, is_whole: bool) -> None:
        self.kind, self.is_whole = kind, is_whole
        self._elements, self._held, self._is_taken = math.prod(kind.shape), 0, False
        self._sizes = slice(_KEY_BYTES + 8 * len(kind.shape), None)
        # Few shapes of shards are different.
        self._extents: dict[bytes, tuple[int, int, int]] = {}

    def extent(self, place: bytes) -> tuple[int, int, int]:
        """Return the rows of a shard, the bytes of a row, and its elements."""
        sizes = place[self._sizes]
        if sizes not in self._extents:
            name, dtype, shape, torch_type = self.kind
            its = tuple(memoryview(sizes).cast("q").tolist())
            shard = Shard(name, dtype, shape, (0,) * len(shape), its, torch_type)
            self._extents[sizes] = (shard.rows, shard.row_bytes, math.prod(its))
        return self._extents[sizes]

    def takes(self, elements: int) -> bool:
        """Count a shard, and return whether it is written.

        Of empty shards only one of a tensor without elements is, so that it has a name.
        """
        self._held += elements
        if not elements and (self._elements or self._is_taken):
            return False
        self._is_taken = True
        return True

    def check_complete(self) -> None:
        """Raise if the shards are not all of the tensor."""
        if self._held != self._elements:
            raise CheckpointError(
                f"the ranks hold {self._held} elements of {self.kind.name}, which has shape "
                f"{list(self.kind.shape)}. Every element must be held, by shards that do not "
                f"overlap."
            )


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Which shards ranks hold that have the same tensors."""

    cuts: Sequence[tuple[bytes, int, int]]
    """Of each: the key of its tensor, and where it begins and ends in `HeldShards.places`."""
    numbers: Mapping[bytes, int]
    """Its number, by the key of its tensor."""


def _tensors(everyone: Sequence[Holders], aliases: Mapping[str, str]) -> dict[bytes, _Tensor]:
    """Return all tensors by key, in the order in which ranks hold them, but those with aliases."""
    distinct = dict.fromkeys(its.held.tensors for its in everyone)
    whole = {aliases.get(name, name) for held in distinct for name in held.whole}
    kinds = dict.fromkeys(
        kind for held in distinct for kind in held.kinds if kind.name not in aliases
    )
    return {
        number.to_bytes(_KEY_BYTES, "little"): _Tensor(kind, is_whole=kind.name in whole)
        for number, kind in enumerate(kinds)
    }


def _tables(
    everyone: Sequence[Holders], tensors: Mapping[bytes, _Tensor]
) -> dict[HeldTensors, _Table]:
    keys = {tensor.kind: key for key, tensor in tensors.items()}
    tables = {}
    for held in dict.fromkeys(its.held.tensors for its in everyone):
        numbers = {keys[kind]: i for i, kind in enumerate(held.kinds) if kind in keys}
        cuts = [(key, held.starts[i], held.starts[i + 1]) for key, i in numbers.items()]
        tables[held] = _Table(cuts=cuts, numbers=numbers)
    return tables


def _holders(
    everyone: Sequence[Holders], tables: Mapping[HeldTensors, _Table]
) -> tuple[dict[bytes, int], dict[bytes, list[int]]]:
    """Return the first holder of each shard, and all holders of those that several hold.

    A shard is the key of its tensor and its place.
    """
    first: dict[bytes, int] = {}
    several: dict[bytes, list[int]] = {}
    for holder, its in enumerate(everyone):
        places = its.held.places
        for key, start, stop in tables[its.held.tensors].cuts:
            shard = key + places[start:stop]
            known = first.setdefault(shard, holder)
            if known != holder:
                several.setdefault(shard, [known]).append(holder)
    return first, several


def _agreed_aliases(everyone: Sequence[Holders]) -> dict[str, str]:
    """Return the aliases of all ranks that hold something: an empty shard has no memory."""
    distinct = dict.fromkeys(its.held.tensors for its in everyone)
    names = {name for held in distinct for name in held.aliases}
    numbers = {
        held: [i for i, kind in enumerate(held.kinds) if kind.name in names] for held in distinct
    }
    agreed: dict[str, str] = {}
    refused = set()
    for its in everyone:
        tensors = its.held.tensors
        for number in numbers[tensors]:
            shard = its.held.shard(number)
            if math.prod(shard.sizes):
                other = tensors.aliases.get(shard.name)
                if other is None or agreed.setdefault(shard.name, other) != other:
                    refused.add(shard.name)
    aliases = {name: other for name, other in agreed.items() if name not in refused}
    return {name: other for name, other in aliases.items() if other not in aliases}


def _checked_shapes(tensors: Mapping[bytes, _Tensor]) -> dict[str, tuple[int, ...]]:
    known: dict[str, Kind] = {}
    for tensor in tensors.values():
        kind = tensor.kind
        if known.setdefault(kind.name, kind) != kind:
            one, other = (_called(each) for each in (known[kind.name], kind))
            raise CheckpointError(
                f"{kind.name} is {one} on one rank and {other} on another. Give it the same shape "
                f"and type on all ranks, or save it under a name of each rank's own."
            )
    return {name: kind.shape for name, kind in known.items()}


def _called(kind: Kind) -> str:
    nowhere = (0,) * len(kind.shape)
    return Shard(kind.name, kind.dtype, kind.shape, nowhere, nowhere, kind.torch_type).kind


def _in_order(ordered: Rows) -> Rows:
    """Return rows as of `Rows`, in the order of all shards."""
    columns = zip(ordered[::4], ordered[1::4], ordered[2::4], ordered[3::4], strict=True)
    return array("q", chain.from_iterable(each[1:] for each in sorted(columns)))
