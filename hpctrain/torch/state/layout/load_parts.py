"""`share_index` and `share_reads`: what rank 0 sends each rank before a load, and nothing else.

The index of a state that thousands of ranks saved has millions of chunks. Rank 0 alone reads it,
and sends each rank the chunks that it wants; it also decides for all of them who reads which block.
Only if all ranks want the same, each receives all chunks, and decides the same by itself. Each does
so, too, if most want the same and something of their own, and their parts would fill rank 0.
"""

from __future__ import annotations

import pickle
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import xxhash

from hpctrain.bulk.index import IndexedFile
from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.torch.state.layout.held import HeldShards
from hpctrain.torch.state.layout.load_plan import (
    Block,
    LiveShards,
    ReadRequests,
    Schedule,
    Transfer,
    plan_global,
)
from hpctrain.torch.state.layout.share_out import Holders, holders_of
from hpctrain.torch.state.layout.strided_copy import overlap
from hpctrain.torch.state.ranks import ask_rank_0, exchange, failing_together
from hpctrain.world import Communicator

_SHARING_INDEX = "sharing the index"
_SHARING_READS = "sharing the reads"
# Many ranks want the same regions of what is replicated. Those of one rank are as many as that.
_KEPT_REGIONS = 100_000
# Of all ranks' parts of an index together, where most is sent several times.
_MOST_BYTES = 2**30
Digests = Mapping[int, tuple[str, ...]]
"""Of the blocks of files, by the number of the file."""


@dataclass(frozen=True, kw_only=True)
class IndexPart:
    """What a rank needs of an index. Files are by number, ascending."""

    wanted: Mapping[int, IndexedFile]
    """Files that this rank wants something of, with at least the chunks that it wants."""
    verified: Mapping[int, IndexedFile]
    """Files whose headers this rank verifies, with all their chunks."""


def wants_of(live: LiveShards) -> HeldShards:
    """Return what this rank wants, by the names in the checkpoint. Not collective.

    Parameters
    ----------
    live
        What is read into.
    """
    return HeldShards.of(
        local.shard._replace(name=saved) for saved, views in live.items() for local in views
    )


def share_index(
    wants: HeldShards | None,
    digests: Sequence[bytes],
    files: Sequence[IndexedFile],
    *,
    ranks: Communicator,
) -> IndexPart:
    """Return this rank's part of an index. Collective.

    Parameters
    ----------
    wants
        Of this rank; not needed if there is no other.
    digests
        Of what each rank wants, by rank.
    files
        All files, on rank 0.
    ranks
        All ranks.

    Raises
    ------
    CheckpointError
        If ranks make other calls, or do not come.
    """
    if len(set(digests)) == 1:
        return _whole_index(files, ranks=ranks)
    with failing_together(ranks, _SHARING_INDEX):
        is_first = digests.index(digests[ranks.rank]) == ranks.rank
        content = wants.encode() if is_first and wants is not None else b""

    def answer(contents: Sequence[bytes]) -> list[bytes]:
        return split_index(files, holders_of(digests, contents))

    part = ask_rank_0(ranks, _SHARING_INDEX, content, answer)
    return decode_part(part) if part else _whole_index(files, ranks=ranks)


def _whole_index(files: Sequence[IndexedFile], *, ranks: Communicator) -> IndexPart:
    everything = exchange(ranks, _SHARING_INDEX, files)[0]
    mine = range(ranks.rank, len(everything), ranks.size)
    verified = {number: everything[number] for number in mine}
    return IndexPart(wanted=dict(enumerate(everything)), verified=verified)


def split_index(files: Sequence[IndexedFile], everyone: Sequence[Holders]) -> list[bytes]:
    """Return each rank's part of an index, for `decode_part`. Not collective.

    Parts are empty if they have most chunks several times and would fill rank 0's memory: then all
    ranks need all of it.

    Parameters
    ----------
    files
        All files.
    everyone
        What all ranks want.
    """
    size = sum(len(its.ranks) for its in everyone)
    names = {kind.name for its in everyone for kind in its.held.tensors.kinds}
    lookup = _Lookup(files, names)
    packed, whole = [], []
    num_bytes = num_chunks = 0
    for its in everyone:
        chunks: dict[int, set[int]] = {}
        for number, chunk in lookup.overlapping(its.held):
            chunks.setdefault(number, set()).add(chunk)
        packed.append(
            pickle.dumps([_packed(number, files[number], chunks[number]) for number in chunks])
        )
        whole.append(
            {n for n, of_it in chunks.items() if len(of_it) == len(files[n].layout.chunks)}
        )
        num_bytes += len(its.ranks) * len(packed[-1])
        num_chunks += len(its.ranks) * sum(map(len, chunks.values()))
    # Replicas of shards want the same, and each is sent its own. What is sent once has room.
    if num_bytes > _MOST_BYTES and num_chunks > 2 * sum(len(file.layout.chunks) for file in files):
        return [b""] * size
    parts = [b""] * size
    for its, wanted, known in zip(everyone, packed, whole, strict=True):
        for rank in its.ranks:
            verified = range(rank, len(files), size)
            others = [
                _packed(n, files[n], range(len(files[n].layout.chunks)))
                for n in verified
                if n not in known
            ]
            parts[rank] = pickle.dumps((wanted, verified, others))
    return parts


def decode_part(content: bytes) -> IndexPart:
    """Return what `split_index` made for one rank. Not collective."""
    packed, verified, others = pickle.loads(content)
    wanted = dict(map(_unpacked, pickle.loads(packed)))
    whole = {**wanted, **dict(map(_unpacked, others))}
    return IndexPart(
        wanted=dict(sorted(wanted.items())),
        verified={number: whole[number] for number in verified},
    )


# Tuples of tuples take a third of the time and memory of what they are made into.
_Packed = tuple[int, str, int, int, list[tuple[str, str, tuple[int, ...], tuple[int, ...], int]]]


def _packed(number: int, file: IndexedFile, chunks: Iterable[int]) -> _Packed:
    layout = file.layout
    content = [
        (chunk.name, chunk.dtype, chunk.shape, chunk.offsets, layout.starts[i])
        for i in sorted(chunks)
        for chunk in (layout.chunks[i],)
    ]
    return number, file.name, layout.header_bytes, layout.data_bytes, content


def _unpacked(packed: _Packed) -> tuple[int, IndexedFile]:
    number, name, header_bytes, data_bytes, content = packed
    layout = StateFile(
        chunks=tuple(
            Chunk(name=name, dtype=dtype, shape=shape, offsets=offsets)
            for name, dtype, shape, offsets, _ in content
        ),
        starts=tuple(start for *_, start in content),
        data_bytes=data_bytes,
        header_bytes=header_bytes,
    )
    return number, IndexedFile(name=name, layout=layout)


class _Lookup:
    """Finds chunks by the region of a tensor that they hold.

    Parameters
    ----------
    files
        All files.
    names
        Of tensors that are looked for.
    """

    def __init__(self, files: Sequence[IndexedFile], names: Collection[str]) -> None:
        regions: dict[str, dict[_Region, tuple[int, int]]] = {name: {} for name in names}
        for number, file in enumerate(files):
            for i, chunk in enumerate(file.layout.chunks):
                if (found := regions.get(chunk.name)) is not None:
                    # Some programs write what all ranks have once a rank.
                    found.setdefault((chunk.offsets, chunk.shape), (number, i))
        self._tensors = {name: _Regions(found) for name, found in regions.items()}
        self._find = lru_cache(_KEPT_REGIONS)(self._found)

    def overlapping(self, held: HeldShards) -> Iterable[tuple[int, int]]:
        """Return files and chunks of all that overlap some shards. Not collective."""
        starts = held.tensors.starts
        for i, kind in enumerate(held.tensors.kinds):
            yield from self._find(kind.name, held.places[starts[i] : starts[i + 1]])

    def _found(self, name: str, place: bytes) -> Sequence[tuple[int, int]]:
        numbers = tuple(memoryview(place).cast("q"))
        dimensions = len(numbers) // 2
        return self._tensors[name].overlapping(numbers[:dimensions], numbers[dimensions:])


_Region = tuple[tuple[int, ...], tuple[int, ...]]


class _Regions:
    """The chunks of a tensor.

    Parameters
    ----------
    chunks
        Files and chunks, by offsets and shape.
    """

    def __init__(self, chunks: Mapping[_Region, tuple[int, int]]) -> None:
        dimensions = range(min((len(offsets) for offsets, _ in chunks), default=0))
        # Along it the fewest begin at the same place.
        self._axis = max(
            dimensions, key=lambda axis: len({offsets[axis] for offsets, _ in chunks}), default=None
        )
        self._chunks, self._starts, self._longest = list(chunks.items()), list[int](), 0
        if (axis := self._axis) is not None:
            self._chunks.sort(key=lambda chunk: chunk[0][0][axis])
            self._starts = [offsets[axis] for (offsets, _), _ in self._chunks]
            self._longest = max(shape[axis] for (_, shape), _ in self._chunks)

    def overlapping(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return files and chunks that overlap a region. Not collective."""
        chunks = self._chunks
        if (axis := self._axis) is not None:
            first = bisect_right(self._starts, offsets[axis] - self._longest)
            last = bisect_left(self._starts, offsets[axis] + sizes[axis])
            chunks = chunks[first:last]
        return [found for region, found in chunks if overlap(*region, offsets, sizes) is not None]


def digest_of(requests: ReadRequests) -> bytes:
    """Return what no other requests have. Not collective."""
    return xxhash.xxh3_128_digest(_flat(requests).tobytes())


def share_reads(
    requests: ReadRequests,
    digests: Digests,
    *,
    are_alike: bool,
    ranks: Communicator,
) -> tuple[Schedule, Digests]:
    """Return what this rank reads, sends and receives, and digests of what it reads. Collective.

    Parameters
    ----------
    requests
        Of this rank.
    digests
        Of the blocks of files whose headers this rank has read.
    are_alike
        Whether all ranks have the same requests.
    ranks
        All ranks.

    Raises
    ------
    CheckpointError
        If ranks make other calls, or do not come.
    """
    schedule: Schedule | None = None
    with failing_together(ranks, _SHARING_READS):
        if are_alike:
            schedule = plan_global([requests] * ranks.size)
        content = pickle.dumps((None if are_alike else _flat(requests), digests))

    def answer(contents: Sequence[bytes]) -> list[bytes]:
        nonlocal schedule
        sent = list(map(pickle.loads, contents))
        known = {number: its for _, part in sent for number, its in part.items()}
        if schedule is None:
            schedule = plan_global([_requests(flat) for flat, _ in sent])
            parts: Sequence[_PackedPart | None] = _split(schedule)
        else:
            parts = [None] * ranks.size
        return [
            pickle.dumps((part, _digests_of_read(schedule, rank, known)))
            for rank, part in enumerate(parts)
        ]

    received: tuple[_PackedPart | None, Digests]
    received = pickle.loads(ask_rank_0(ranks, _SHARING_READS, content, answer))
    part, digests = received
    if schedule is None:
        assert part is not None
        schedule = _joined(part, ranks.rank)
    return schedule, digests


_Numbers: TypeAlias = "array[int]"
_PackedPart = tuple[_Numbers, _Numbers, _Numbers]


def _flat(rows: Iterable[Iterable[int]]) -> _Numbers:
    return array("q", chain.from_iterable(rows))


def _requests(flat: _Numbers) -> ReadRequests:
    return list(zip(flat[::5], flat[1::5], flat[2::5], flat[3::5], flat[4::5], strict=True))


def _split(schedule: Schedule) -> list[_PackedPart]:
    """Return what each rank does, for `_joined`."""
    transfers = [array("q") for _ in schedule.own]
    for each in schedule.transfers:
        row = (*each.block, each.reader, each.receiver, each.low, each.high)
        transfers[each.reader].extend(row)
        transfers[each.receiver].extend(row)
    return [
        (_flat(schedule.own[rank]), _flat(schedule.shared[rank]), its)
        for rank, its in enumerate(transfers)
    ]


def _joined(part: _PackedPart, rank: int) -> Schedule:
    own, shared, flat = part
    rows = zip(flat[::6], flat[1::6], flat[2::6], flat[3::6], flat[4::6], flat[5::6], strict=True)
    return Schedule(
        own={rank: _blocks(own)},
        shared={rank: _blocks(shared)},
        transfers=[
            Transfer(block=(file, block), reader=reader, receiver=receiver, low=low, high=high)
            for file, block, reader, receiver, low, high in rows
        ],
    )


def _blocks(flat: _Numbers) -> list[Block]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _digests_of_read(schedule: Schedule, rank: int, known: Digests) -> Digests:
    numbers = {number for number, _ in (*schedule.own[rank], *schedule.shared[rank])}
    return {number: known[number] for number in numbers if number in known}
