"""`plan_save`: which rank writes which bytes of a state, and where they are in memory."""

from __future__ import annotations

import math
import pickle
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from hpctrain.bulk.index import IndexedFile, StateIndex, file_name
from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.layout.balance import HeldRows, balance_rows
from hpctrain.torch.state.layout.block_source import BlockSource
from hpctrain.torch.state.layout.shards import LocalShard, Shard, shards_of
from hpctrain.torch.state.ranks import exchange, failing_together
from hpctrain.torch.state.state_dict.flatten import FlatState
from hpctrain.world import Communicator

# A run has a plan for its state, perhaps one from before the optimizer's first step, and some for
# states that are saved apart.
_KEPT_PLANS = 8


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """What this rank writes of a state."""

    name: str
    """Of its file."""
    layout: StateFile
    """Of its file; without chunks, if there is too little for all ranks."""
    index: StateIndex | None
    """Of all files, on rank 0."""
    source: BlockSource


PLANNING = "save_state()"
"""The first exchange of those who save."""


def plan_save(state: FlatState, *, communicator: Communicator, stage: str = PLANNING) -> SavePlan:
    """Share a state out over the ranks.

    Collective: ranks send each other a digest of what they hold, and all of it the first time. So
    the state of some ranks alone may change from call to call.

    Tensors that are sharded are written by who holds them. Those that are replicated are shared
    out, so that each byte is written once, and all ranks write equally many. Those that ranks may
    have with other values, such as buffers of modules, are written by the lowest rank. Of tensors
    that share their memory one is written, and the index has the names of the others.

    Parameters
    ----------
    state
        This rank's. Values, which are no tensors, are taken from rank 0.
    communicator
        All ranks, each of which writes one file.
    stage
        What all of them must be at.

    Raises
    ------
    ConfigError
        If a tensor cannot be saved.
    CheckpointError
        If not all ranks call, or they have other types or shapes of a tensor.
    """
    with failing_together(communicator, stage):
        local = _LocalTensors(state)
    digests = exchange(communicator, stage, local.digest)
    assignment = _agreed_assignment(local, digests, communicator)
    index = None
    if communicator.rank == 0:
        index = StateIndex(
            files=assignment.files,
            shapes=assignment.shapes,
            values=state.values,
            aliases=assignment.aliases,
            types=assignment.types,
            trees=state.trees(),
        )
    return SavePlan(
        name=file_name(communicator.rank, communicator.size),
        layout=assignment.layout,
        index=index,
        source=local.source(assignment.layout),
    )


class _LocalTensors:
    """A rank's tensors; if they are those of the plan before, none of them is examined again.

    Parameters
    ----------
    state
        This rank's.
    """

    def __init__(self, state: FlatState) -> None:
        self._state, self._key = state, _cache_key(state)
        # The plan before is this one too, if it is still in use and no tensor has moved.
        last = _last if self._key is not None and _last and _last.key == self._key else None
        self._source = None if last is None else last.source()
        if last is not None and self._source is not None:
            self.digest = last.digest
        else:
            self.digest = self.held.digest()

    @cached_property
    def shards(self) -> dict[str, LocalShard]:
        return shards_of(self._state.tensors)

    @cached_property
    def held(self) -> _Held:
        return _Held.of(self.shards, self._state.replicated)

    def source(self, layout: StateFile) -> BlockSource:
        """Return where the blocks of this rank's file come from."""
        global _last
        if self._source is None or self._source.layout is not layout:
            views = [self.shards[chunk.name].view(chunk) for chunk in layout.chunks]
            self._source = BlockSource(layout, views)
            # A copy in place of a tensor is of this moment.
            is_live = all(local.copied is None for local in self.shards.values())
            key = self._key if is_live else None
            _last = _Last(key=key, digest=self.digest, source=weakref.ref(self._source))
        return self._source


def _agreed_assignment(
    local: _LocalTensors, digests: Sequence[bytes], ranks: Communicator
) -> _Assignment:
    """Return who writes what: from a plan before, or as ranks agree. Collective at first."""
    key = (xxhash.xxh3_128_digest(b"".join(digests)), ranks.rank, ranks.size)
    if key not in _assignments:
        replicated = len(set(digests)) == 1
        _assignments[key] = _assign(local.held, ranks, replicated=replicated)
        while len(_assignments) > _KEPT_PLANS:
            _assignments.popitem(last=False)
    _assignments.move_to_end(key)
    return _assignments[key]


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What a rank sends the others of its tensors."""

    shards: tuple[Shard, ...]
    aliases: Mapping[str, str]
    """Names of tensors that have the memory of one before them, and its name."""
    whole: tuple[str, ...]
    """Names of tensors that other ranks may have with other values."""

    @classmethod
    def of(cls, shards: Mapping[str, LocalShard], replicated: Collection[str]) -> _Held:
        aliases = _aliases(shards)
        # In a dict, the memory of a parameter is still a parameter.
        same = {aliases.get(name, name) for name in replicated}
        return cls(
            shards=tuple(local.shard for local in shards.values()),
            aliases=aliases,
            whole=tuple(name for name in shards if aliases.get(name, name) not in same),
        )

    def digest(self) -> bytes:
        sent = (self.shards, tuple(self.aliases.items()), self.whole)
        content = pickle.dumps(sent, protocol=4)
        return xxhash.xxh3_128_digest(content)


@dataclass(frozen=True, kw_only=True)
class _Assignment:
    layout: StateFile
    files: tuple[IndexedFile, ...]
    """On rank 0, as all below."""
    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    types: Mapping[str, str]


_Key = tuple[bytes, int, int]
_assignments: OrderedDict[_Key, _Assignment] = OrderedDict()


@dataclass(frozen=True, kw_only=True)
class _Last:
    """The plan before."""

    key: list[Any] | None
    """Of `_cache_key`; None if it cannot be the next one."""
    digest: bytes
    source: weakref.ref[BlockSource]


_last: _Last | None = None


def _cache_key(state: FlatState) -> list[Any] | None:
    """Return all that a plan depends on, and where tensors are; None if some are at no address."""
    import torch

    found: list[Any] = [state.replicated]
    for name, tensor in state.tensors.items():
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout is not torch.strided:
            return None
        # All in one list, without a container for each of thousands of tensors.
        found += (name, local.data_ptr(), local.dtype, local.device, local.is_conj())
        found += (local.is_neg(), getattr(tensor, "_spec", None), local.dim())
        found += (*local.shape, *local.stride(), *tensor.shape)
    return found


def _aliases(shards: Mapping[str, LocalShard]) -> dict[str, str]:
    first: dict[tuple[object, ...], str] = {}
    aliases = {}
    for name, local in shards.items():
        live = local.content if local.copied is None else local.copied
        if not live.numel():
            continue
        memory = (
            live.data_ptr(),
            live.stride(),
            live.device,
            # Of the same memory they make other numbers.
            live.is_conj(),
            live.is_neg(),
            *local.shard[1:],
        )
        if first.setdefault(memory, name) != name:
            aliases[name] = first[memory]
    return aliases


def _assign(own: _Held, ranks: Communicator, *, replicated: bool) -> _Assignment:
    if replicated:
        # All of it is replicated, and each rank knows by itself what every rank would send.
        held = [own]
        holders = {shard: tuple(range(ranks.size)) for shard in own.shards}
    else:
        held = exchange(ranks, "sharing out", own)
        holders = _holders(held)
    aliases = _agreed_aliases(held)
    whole = {aliases.get(name, name) for its in held for name in its.whole}
    holders = {shard: who[:1] if shard.name in whole else who for shard, who in holders.items()}
    shards = [shard for shard in holders if shard.name not in aliases]
    shapes = _checked_shapes(shards)
    shards = _without_empty(shards)
    ranges = balance_rows(
        [
            HeldRows(holders=holders[shard], rows=shard.rows, row_bytes=shard.row_bytes)
            for shard in shards
        ],
        ranks=ranks.size,
    )
    chunks: list[list[Chunk]] = [[] for _ in range(ranks.size)]
    for shard, its_ranges in zip(shards, ranges, strict=True):
        for rows in its_ranges:
            chunks[rows.rank].append(shard.chunk(rows.start, rows.stop))
    layout = StateFile.plan(chunks[ranks.rank])
    if ranks.rank != 0:
        return _Assignment(layout=layout, files=(), shapes={}, aliases={}, types={})
    files = tuple(
        IndexedFile(name=file_name(rank, ranks.size), layout=StateFile.plan(chunks[rank]))
        for rank in range(ranks.size)
    )
    types = {shard.name: shard.torch_type for shard in shards if shard.torch_type}
    return _Assignment(layout=layout, files=files, shapes=shapes, aliases=aliases, types=types)


def _holders(held: Sequence[_Held]) -> dict[Shard, tuple[int, ...]]:
    holders: dict[Shard, list[int]] = {}
    for rank, its in enumerate(held):
        for shard in its.shards:
            holders.setdefault(shard, []).append(rank)
    return {shard: tuple(ranks) for shard, ranks in holders.items()}


def _agreed_aliases(held: Sequence[_Held]) -> dict[str, str]:
    """Return the aliases of all ranks that hold something: an empty shard has no memory."""
    agreed: dict[str, str] = {}
    refused = set()
    for its in held:
        for shard in its.shards:
            if math.prod(shard.sizes):
                other = its.aliases.get(shard.name)
                if other is None or agreed.setdefault(shard.name, other) != other:
                    refused.add(shard.name)
    aliases = {name: other for name, other in agreed.items() if name not in refused}
    return {name: other for name, other in aliases.items() if other not in aliases}


def _checked_shapes(shards: Sequence[Shard]) -> dict[str, tuple[int, ...]]:
    kinds: dict[str, Shard] = {}
    elements: Counter[str] = Counter()
    for shard in shards:
        known = kinds.setdefault(shard.name, shard)
        kind = (shard.shape, shard.dtype, shard.torch_type)
        if (known.shape, known.dtype, known.torch_type) != kind:
            raise CheckpointError(
                f"{shard.name} is {known.kind} on one rank and {shard.kind} on another. Give it "
                f"the same shape and type on all ranks, or save it under a name of each rank's own."
            )
        elements[shard.name] += math.prod(shard.sizes)
    for name, shard in kinds.items():
        if elements[name] != math.prod(shard.shape):
            raise CheckpointError(
                f"the ranks hold {elements[name]} elements of {name}, which has shape "
                f"{list(shard.shape)}. Every element must be held, by shards that do not overlap."
            )
    return {name: shard.shape for name, shard in kinds.items()}


def _without_empty(shards: Sequence[Shard]) -> list[Shard]:
    """Leave out empty shards, but for one of a tensor without elements, so that it has a name."""
    named = set()
    kept = []
    for shard in shards:
        if math.prod(shard.sizes) or (not math.prod(shard.shape) and shard.name not in named):
            named.add(shard.name)
            kept.append(shard)
    return kept
