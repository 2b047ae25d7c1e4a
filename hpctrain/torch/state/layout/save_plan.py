"""`plan_save`: which rank writes which bytes of a state, and where they are in memory."""

from __future__ import annotations

import weakref
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from hpctrain.bulk.index import IndexedFile, PlannedFiles, StateIndex, file_name
from hpctrain.bulk.state_file import StateFile
from hpctrain.torch.state.layout.block_source import BlockSource
from hpctrain.torch.state.layout.held import HeldShards
from hpctrain.torch.state.layout.shards import LocalShard, shards_of
from hpctrain.torch.state.layout.share_out import Holders, SharedOut, holders_of, share_out
from hpctrain.torch.state.ranks import ask_rank_0, exchange, failing_together
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
_SHARING_OUT = "sharing out"


def plan_save(state: FlatState, *, communicator: Communicator, stage: str = PLANNING) -> SavePlan:
    """Share a state out over the ranks.

    Collective: ranks send each other a digest of what they hold. The first time they send all of it
    to rank 0, which plans for all ranks and sends each its part. So the state of some ranks alone
    may change from call to call.

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
    def held(self) -> HeldShards:
        aliases = _aliases(self.shards)
        # In a dict, the memory of a parameter is still a parameter.
        same = {aliases.get(name, name) for name in self._state.replicated}
        whole = [name for name in self.shards if aliases.get(name, name) not in same]
        shards = (local.shard for local in self.shards.values())
        return HeldShards.of(shards, aliases=aliases, whole=whole)

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
        if len(set(digests)) == 1:
            # All of it is replicated, and each rank knows by itself what all of them hold.
            everyone = [Holders(ranks=tuple(range(ranks.size)), held=local.held)]
            assignment = _assignment(everyone, share_out(everyone), rank=ranks.rank)
        else:
            assignment = _assigned_by_rank_0(local, digests, ranks)
        _assignments[key] = assignment
        while len(_assignments) > _KEPT_PLANS:
            _assignments.popitem(last=False)
    _assignments.move_to_end(key)
    return _assignments[key]


def _assigned_by_rank_0(
    local: _LocalTensors, digests: Sequence[bytes], ranks: Communicator
) -> _Assignment:
    """Return who writes what, as rank 0 plans it for all ranks. Collective."""
    assignment: _Assignment | None = None

    def plan(contents: Sequence[bytes]) -> list[bytes]:
        nonlocal assignment
        everyone = holders_of(digests, contents)
        shared = share_out(everyone)
        assignment = _assignment(everyone, shared, rank=0)
        return [rows.tobytes() for rows in shared.rows]

    with failing_together(ranks, _SHARING_OUT):
        is_first = digests.index(digests[ranks.rank]) == ranks.rank
        content = local.held.encode() if is_first else b""
    answer = ask_rank_0(ranks, _SHARING_OUT, content, plan)
    if assignment is None:
        layout = local.held.layout(array("q", answer))
        return _Assignment(layout=layout, files=(), shapes={}, aliases={}, types={})
    return assignment


@dataclass(frozen=True, kw_only=True)
class _Assignment:
    layout: StateFile
    files: Sequence[IndexedFile]
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


def _assignment(everyone: Sequence[Holders], shared: SharedOut, *, rank: int) -> _Assignment:
    held = {rank: its.held for its in everyone for rank in its.ranks}
    layout = held[rank].layout(shared.rows[rank])
    if rank != 0:
        return _Assignment(layout=layout, files=(), shapes={}, aliases={}, types={})
    return _Assignment(
        layout=layout,
        files=PlannedFiles(
            len(held),
            lambda number: IndexedFile(
                name=file_name(number, len(held)), layout=held[number].layout(shared.rows[number])
            ),
        ),
        shapes=shared.shapes,
        aliases=shared.aliases,
        types=shared.types,
    )
