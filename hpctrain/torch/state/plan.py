"""`plan_state`: which rank writes which bytes of a state, and where they are in memory."""

from __future__ import annotations

import math
import pickle
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from hpctrain.bulk.index import IndexedFile, StateIndex, file_name
from hpctrain.bulk.state_file import Piece, StateFile
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.boxes import Box, LocalBox, boxes_of
from hpctrain.torch.state.copies import BlockCopies
from hpctrain.torch.state.flatten import FlatState
from hpctrain.torch.state.ranks import exchange, telling_failure
from hpctrain.torch.state.share import Held, share_out
from hpctrain.world import Communicator

# A run has a plan for its state, perhaps one from before the optimizer's first step, and some for
# states that are saved apart.
_KEPT_PLANS = 8


@dataclass(frozen=True, kw_only=True)
class StatePlan:
    """What this rank writes of a state."""

    name: str
    """Of its file."""
    layout: StateFile
    """Of its file; without pieces, if there is too little for all ranks."""
    index: StateIndex | None
    """Of all files, on rank 0."""
    copies: BlockCopies


PLANNING = "save_state()"
"""The first exchange of those who save."""


def plan_state(state: FlatState, *, communicator: Communicator, stage: str = PLANNING) -> StatePlan:
    """Share a state out over the ranks.

    Collective: ranks tell each other a digest of what they hold, and all of it the first time. So
    the state of some ranks alone may change from call to call.

    Tensors that are sharded are written by who holds them. Those that are replicated are shared
    out, so that each byte is written once, and all ranks write equally many; buffers of modules,
    which ranks may have with other values, are the lowest rank's. Of tensors that share
    their memory one is written, and the index has the names of the others.

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
    global _last
    with telling_failure(communicator, stage):
        memory = _memory(state)
        # The plan before is this one too, if it is still in use and no tensor has moved.
        last = _last if memory is not None and _last and _last.memory == memory else None
        copies = None if last is None else last.copies()
        boxes: dict[str, LocalBox] | None = None
        if last is not None and copies is not None:
            digest = last.digest
        else:
            boxes = boxes_of(state.tensors)
            digest = _Held.of(boxes, state.buffers).digest()
    digests = exchange(communicator, stage, digest)
    key = (xxhash.xxh3_128_digest(b"".join(digests)), communicator.rank, communicator.size)
    if key not in _assignments:
        boxes = boxes or boxes_of(state.tensors)
        replicated = len(set(digests)) == 1
        held = _Held.of(boxes, state.buffers)
        _assignments[key] = _assign(held, communicator, replicated=replicated)
        while len(_assignments) > _KEPT_PLANS:
            _assignments.popitem(last=False)
    _assignments.move_to_end(key)
    assignment = _assignments[key]
    if copies is None or copies.layout is not assignment.layout:
        boxes = boxes or boxes_of(state.tensors)
        views = [boxes[piece.name].view(piece) for piece in assignment.layout.pieces]
        copies = BlockCopies(assignment.layout, views)
        if any(local.copied is not None for local in boxes.values()):
            # Such a copy is of this moment.
            memory = None
        _last = _Last(memory=memory, digest=digest, copies=weakref.ref(copies))
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
    return StatePlan(
        name=file_name(communicator.rank, communicator.size),
        layout=assignment.layout,
        index=index,
        copies=copies,
    )


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What a rank tells the others of its tensors."""

    boxes: tuple[Box, ...]
    aliases: Mapping[str, str]
    """Names of tensors that have the memory of one before them, and its name."""
    buffers: tuple[str, ...]
    """As in the state."""

    @classmethod
    def of(cls, boxes: Mapping[str, LocalBox], buffers: Collection[str]) -> _Held:
        return cls(
            boxes=tuple(local.box for local in boxes.values()),
            aliases=_aliases(boxes),
            buffers=tuple(sorted(boxes.keys() & set(buffers))),
        )

    def digest(self) -> bytes:
        sent = (self.boxes, tuple(self.aliases.items()), self.buffers)
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

    memory: list[Any] | None
    """None if it cannot be the next one."""
    digest: bytes
    copies: weakref.ref[BlockCopies]


_last: _Last | None = None


def _memory(state: FlatState) -> list[Any] | None:
    """Return all that a plan depends on, and where tensors are; None if some are at no address."""
    import torch

    found: list[Any] = [state.buffers]
    for name, tensor in state.tensors.items():
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout is not torch.strided:
            return None
        # All in one list, without a container for each of thousands of tensors.
        found += (name, local.data_ptr(), local.dtype, local.device, local.is_conj())
        found += (local.is_neg(), getattr(tensor, "_spec", None), local.dim())
        found += (*local.shape, *local.stride(), *tensor.shape)
    return found


def _aliases(boxes: Mapping[str, LocalBox]) -> dict[str, str]:
    first: dict[tuple[object, ...], str] = {}
    aliases = {}
    for name, local in boxes.items():
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
            *local.box[1:],
        )
        if first.setdefault(memory, name) != name:
            aliases[name] = first[memory]
    return aliases


def _assign(own: _Held, ranks: Communicator, *, replicated: bool) -> _Assignment:
    if replicated:
        # All of it is replicated, and each rank can tell by itself what every rank would say.
        held = [own]
        holders = {box: tuple(range(ranks.size)) for box in own.boxes}
    else:
        held = exchange(ranks, "sharing out", own)
        holders = _holders(held)
    aliases = _agreed_aliases(held)
    buffers = {aliases.get(name, name) for its in held for name in its.buffers}
    holders = {box: who[:1] if box.name in buffers else who for box, who in holders.items()}
    boxes = [box for box in holders if box.name not in aliases]
    shapes = _checked_shapes(boxes)
    boxes = _without_empty(boxes)
    shares = share_out(
        [Held(holders=holders[box], rows=box.rows, row_bytes=box.row_bytes) for box in boxes],
        ranks=ranks.size,
    )
    pieces: list[list[Piece]] = [[] for _ in range(ranks.size)]
    for box, parts in zip(boxes, shares, strict=True):
        for part in parts:
            pieces[part.rank].append(box.piece(part.start, part.stop))
    layout = StateFile.plan(pieces[ranks.rank])
    if ranks.rank != 0:
        return _Assignment(layout=layout, files=(), shapes={}, aliases={}, types={})
    files = tuple(
        IndexedFile(name=file_name(rank, ranks.size), layout=StateFile.plan(pieces[rank]))
        for rank in range(ranks.size)
    )
    types = {box.name: box.torch_type for box in boxes if box.torch_type}
    return _Assignment(layout=layout, files=files, shapes=shapes, aliases=aliases, types=types)


def _holders(held: Sequence[_Held]) -> dict[Box, tuple[int, ...]]:
    holders: dict[Box, list[int]] = {}
    for rank, its in enumerate(held):
        for box in its.boxes:
            holders.setdefault(box, []).append(rank)
    return {box: tuple(ranks) for box, ranks in holders.items()}


def _agreed_aliases(held: Sequence[_Held]) -> dict[str, str]:
    """Return the aliases of all ranks that hold something: an empty shard has no memory."""
    agreed: dict[str, str] = {}
    refused = set()
    for its in held:
        for box in its.boxes:
            if math.prod(box.sizes):
                other = its.aliases.get(box.name)
                if other is None or agreed.setdefault(box.name, other) != other:
                    refused.add(box.name)
    aliases = {name: other for name, other in agreed.items() if name not in refused}
    return {name: other for name, other in aliases.items() if other not in aliases}


def _checked_shapes(boxes: Sequence[Box]) -> dict[str, tuple[int, ...]]:
    kinds: dict[str, Box] = {}
    elements: Counter[str] = Counter()
    for box in boxes:
        known = kinds.setdefault(box.name, box)
        kind = (box.shape, box.dtype, box.torch_type)
        if (known.shape, known.dtype, known.torch_type) != kind:
            raise CheckpointError(
                f"{box.name} is {known.kind} on one rank and {box.kind} on another. Give it the "
                f"same shape and type on all ranks, or save it under a name of each rank's own."
            )
        elements[box.name] += math.prod(box.sizes)
    for name, box in kinds.items():
        if elements[name] != math.prod(box.shape):
            raise CheckpointError(
                f"the ranks hold {elements[name]} elements of {name}, which has shape "
                f"{list(box.shape)}. Every element must be held, by shards that do not overlap."
            )
    return {name: box.shape for name, box in kinds.items()}


def _without_empty(boxes: Sequence[Box]) -> list[Box]:
    """Leave out empty shards, but for one of a tensor without elements, so that it has a name."""
    named = set()
    kept = []
    for box in boxes:
        if math.prod(box.sizes) or (not math.prod(box.shape) and box.name not in named):
            named.add(box.name)
            kept.append(box)
    return kept
