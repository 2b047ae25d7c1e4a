"""`plan_local` and `plan_global`: what each rank reads of a checkpoint, and where it goes.

As in `torch.distributed.checkpoint`, each rank first plans for itself: which region of which chunk
goes into which live tensor. What all ranks want decides who reads which block, and who sends what
to whom; of that, `load_parts` gives each rank its part. Each block is read by one of the ranks that
want something of it, and sent on to the others. So each byte is read once, whatever the number of
ranks, of files, and of ranks that wrote them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hpctrain.bulk.index import IndexedFile, StateIndex
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.layout.block_targets import FileTargets
from hpctrain.torch.state.layout.shards import LocalShard, shards_of
from hpctrain.torch.state.layout.strided_copy import overlap
from hpctrain.torch.state.state_dict.flatten import FlatState

_NAMED = 3
Block = tuple[int, int]
"""A file and a block of it, by their numbers."""
ReadRequests = Sequence[tuple[int, int, int, int, int]]
"""Of one rank: file, first block, block after the last; which bytes of them, the same of each."""
LiveShards = Mapping[str, Sequence[LocalShard]]
"""What is read into, by names in the checkpoint."""


def plan_local(
    live: LiveShards, files: Mapping[int, IndexedFile], *, directory: Path
) -> dict[int, FileTargets]:
    """Return where the blocks of each file go on this rank, by the number of the file.

    Not collective.

    Parameters
    ----------
    live
        What is read into.
    files
        Of the checkpoint, by number, ascending: at least those of their chunks that overlap shards
        of this rank.
    directory
        Of the checkpoint, for errors.

    Raises
    ------
    CheckpointError
        If something is missing.
    """
    targets: dict[int, FileTargets] = {}
    found: dict[int, int] = {}
    seen = set()
    for number, file in files.items():
        for chunk_number, chunk in enumerate(file.layout.chunks):
            for local in live.get(chunk.name, ()):
                shard = local.shard
                common = overlap(chunk.offsets, chunk.shape, shard.offsets, shard.sizes)
                # Some programs write what all ranks have once a rank.
                if common is None or (part := (id(local), chunk.offsets, chunk.shape)) in seen:
                    continue
                seen.add(part)
                found[id(local)] = found.get(id(local), 0) + math.prod(common.lengths)
                region = local.content
                if common.lengths != shard.sizes:
                    for axis, start in enumerate(common.target_offsets):
                        region = region.narrow(axis, start, common.lengths[axis])
                if number not in targets:
                    targets[number] = FileTargets(file.layout)
                targets[number].add(chunk_number, region, offsets=common.source_offsets)
    for local in chain.from_iterable(live.values()):
        wanted = math.prod(local.shard.sizes)
        if found.get(id(local), 0) != wanted:
            raise CheckpointError(
                f"{directory} has {found.get(id(local), 0)} of the {wanted} elements of "
                f"{local.shard.name} that this rank holds: a file of it is missing. Load another "
                f"checkpoint."
            )
    return targets


def live_shards(
    state: FlatState,
    index: StateIndex,
    dtypes: Iterable[tuple[str, str]],
    *,
    directory: Path,
) -> LiveShards:
    """Return the shards that are read into, by their names in the checkpoint. Not collective.

    Parameters
    ----------
    state
        The live one.
    index
        Of the checkpoint. It need not have files.
    dtypes
        As of `StateIndex.dtypes`, of all files.
    directory
        Of the checkpoint, for errors.

    Raises
    ------
    CheckpointError
        If names, shapes or types differ, or elements of a live tensor share their memory.
    """
    shards = shards_of(state.tensors)
    # Also of tensors that other ranks have.
    saved_names = {name: saved_name(name, index) for name in state.tensors}
    _check_names(state, shards, saved_names, index, directory)
    # Shared weights are read once. If they were not shared, the last are, as torch has it.
    places: dict[Any, tuple[str, LocalShard]] = {}
    live: dict[str, list[LocalShard]] = {}
    for name, local in shards.items():
        if (saved := saved_names[name]) is None:
            continue
        for view in local.views():
            content = view.content
            if 0 in content.stride():
                _check_memory(view)
            memory = content.data_ptr()
            place = (memory, content.shape, content.stride()) if memory else (saved, view.shard)
            if place in places:
                _check_shared(name, saved, *places[place], index)
            places[place] = (saved, view)
            live.setdefault(saved, []).append(view)
    for saved, dtype in dtypes:
        for local in live.get(saved, ()):
            _check_kind(local, saved, dtype, index, directory)
    read = {id(view) for _, view in places.values()}
    return {name: [view for view in views if id(view) in read] for name, views in live.items()}


def saved_name(name: str, index: StateIndex) -> str | None:
    """Return the name of a live tensor in the checkpoint, or None. Not collective."""
    # Other programs have no name for the model as a whole.
    for candidate in (name, name.partition(".")[2]) if index.plain_names else (name,):
        if candidate in index.aliases:
            return index.aliases[candidate]
        if candidate in index.shapes:
            return candidate
    return None


def requests_of(targets: Mapping[int, FileTargets]) -> ReadRequests:
    """Return what this rank wants, for `plan_global`. Not collective.

    Parameters
    ----------
    targets
        Of this rank, by the number of the file.
    """
    wants: list[tuple[int, int, int, int, int]] = []
    for number, file_targets in sorted(targets.items()):
        for block, target in sorted(file_targets.blocks.items()):
            low, high = target.low, target.high
            last = wants[-1] if wants else None
            # Whole blocks in a row are one request: a replica wants them all.
            if last is not None and last[0] == number and last[2:] == (block, low, high):
                wants[-1] = (number, last[1], block + 1, low, high)
            else:
                wants.append((number, block, block + 1, low, high))
    return wants


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What one rank sends to another of a block that it has read."""

    block: Block
    reader: int
    receiver: int
    low: int
    high: int
    """Which bytes of the block."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What ranks do: all of them, or one and those that it sends to and receives from."""

    own: Mapping[int, Sequence[Block]]
    """By rank: what it reads for itself only."""
    shared: Mapping[int, Sequence[Block]]
    """By rank: what it reads, and others want as well."""
    transfers: Sequence[Transfer]
    """In the order in which every rank has its part of them."""


def plan_global(requests: Sequence[ReadRequests]) -> Schedule:
    """Return who reads what, given what every rank wants. Not collective.

    All ranks read as evenly as possible. Who wants a block at all may read it, so with the layout
    that was saved nothing is sent.
    """
    wanted: dict[Block, list[tuple[int, int, int]]] = {}
    for rank, ranges in enumerate(requests):
        for file, first, stop, low, high in ranges:
            for number in range(first, stop):
                wanted.setdefault((file, number), []).append((rank, low, high))
    own: dict[int, list[Block]] = {rank: [] for rank in range(len(requests))}
    shared: dict[int, list[Block]] = {rank: [] for rank in range(len(requests))}
    for block in sorted(wanted):
        if len(wanted[block]) == 1:
            own[wanted[block][0][0]].append(block)
    load = [len(blocks) for blocks in own.values()]
    rounds: list[tuple[int, int, Block]] = []
    # Of each file the first, then of each the second: who wants what differs from file to file.
    for block in sorted(
        (block for block, who in wanted.items() if len(who) > 1), key=lambda block: block[::-1]
    ):
        # Of those that have read least, who wants most: less is sent then.
        reader, _, _ = min(wanted[block], key=lambda want: (load[want[0]], want[1] - want[2]))
        load[reader] += 1
        rounds.append((len(shared[reader]), reader, block))
        shared[reader].append(block)
    transfers = [
        Transfer(block=block, reader=reader, receiver=rank, low=low, high=high)
        # All ranks read at the same time: first of each the first, then of each the second.
        for _, reader, block in sorted(rounds)
        for rank, low, high in _beginning_after(reader, wanted[block])
        if rank != reader
    ]
    return Schedule(own=own, shared=shared, transfers=transfers)


def _beginning_after(
    reader: int, who: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Order receivers so that not all ranks send to the same one at a time."""
    return sorted(who, key=lambda want: (want[0] < reader, want[0]))


def _check_names(
    state: FlatState,
    shards: Mapping[str, LocalShard],
    saved_names: Mapping[str, str | None],
    index: StateIndex,
    directory: Path,
) -> None:
    here = {saved for saved in saved_names.values() if saved is not None}
    # Some programs save one of the names of shared weights.
    covered = {
        (local.content.data_ptr(), local.shard.shape)
        for name, local in shards.items()
        if saved_names[name] is not None
    }
    missing = [
        name
        for name, local in shards.items()
        if saved_names[name] is None
        and (local.content.data_ptr(), local.shard.shape) not in covered
    ]
    missing += [name for name in state.values if name not in index.values]
    parts = {stateful.name for stateful in state.objects}
    plain = index.plain_names and not any(name.partition(".")[0] in parts for name in index.shapes)
    unexpected = [
        name
        for name in index.shapes
        if name not in here and (plain or name.partition(".")[0] in parts)
    ]
    # Of shared weights each has to be asked for.
    unexpected += [
        name
        for name in index.aliases
        if name not in state.tensors and name.partition(".")[0] in parts
    ]
    if not index.plain_names:
        # Other programs' values have names of their own in those of trees, too.
        unexpected += [
            name
            for name in index.values
            if name not in state.values and name.partition(".")[0] in parts
        ]
    differences = [
        f"{directory} has no {_some(missing)}, which the state to be loaded has" if missing else "",
        f"{directory} has {_some(unexpected)}, which the state to be loaded has not"
        if unexpected
        else "",
    ]
    if any(differences):
        names = (*index.shapes, *index.aliases, *index.values)
        held = sorted({name.partition(".")[0] for name in names})
        raise CheckpointError(
            f"{'; and '.join(filter(None, differences))}. It holds {', '.join(held)}. Make model, "
            f"optimizer and all else as they were when it was saved, give them the same names, or "
            f"leave out what is not to be loaded."
        )


def _check_kind(
    local: LocalShard, saved: str, dtype: str, index: StateIndex, directory: Path
) -> None:
    shard, shape, types = local.shard, index.shapes[saved], index.types
    known = None if types is None else types.get(saved, "")
    if (shard.dtype, shard.shape) != (dtype, shape) or known not in (None, shard.torch_type):
        other = shard._replace(dtype=dtype, shape=shape, torch_type=known or "")
        raise CheckpointError(
            f"{shard.name} is {shard.kind}, and in {directory} it is {other.kind}. Make the model "
            f"as it was when it was saved, or convert it after loading."
        )


def _check_shared(
    name: str, saved: str, other_saved: str, other: LocalShard, index: StateIndex
) -> None:
    """Refuse to read two things that were saved apart into one memory, but for weights of a model.

    Other programs do not record shared memory.
    """
    one, two = name.partition(".")[0], other.shard.name.partition(".")[0]
    if saved != other_saved and one != two and not index.plain_names:
        raise CheckpointError(
            f"{name} is the same memory as {other.shard.name}, and was saved apart from it: "
            f"loading one would overwrite the other. Give {one} tensors of its own, "
            f"{name}.clone() for instance."
        )


def _check_memory(local: LocalShard) -> None:
    """Refuse what `torch.Tensor.expand` made: its elements cannot be written one by one."""
    content = local.content
    if content.numel() and any(
        size > 1 and not stride
        for size, stride in zip(content.shape, content.stride(), strict=True)
    ):
        raise CheckpointError(
            f"{local.shard.name} is {local.shard.kind} in less memory: some of its elements are "
            f"one and the same, as after expand(), and cannot be loaded one by one. Put "
            f"{local.shard.name}.clone() in its place before loading."
        )


def _some(names: Collection[str]) -> str:
    named = ", ".join(sorted(names)[:_NAMED])
    rest = len(names) - _NAMED
    return f"{named} and {rest} more" if rest > 0 else named
