"""`match`: which box of which piece of a checkpoint goes into which live tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpctrain.bulk.index import StateIndex
from hpctrain.bulk.state_file import Piece
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.boxes import LocalBox, boxes_of
from hpctrain.torch.state.flatten import FlatState
from hpctrain.torch.state.runs import overlap
from hpctrain.torch.state.targets import FileTargets

_NAMED = 3


def match(state: FlatState, index: StateIndex, *, directory: Path) -> dict[int, FileTargets]:
    """Return where the blocks of each file go on this rank, by the number of the file.

    Not collective.

    Parameters
    ----------
    state
        The live one.
    index
        Of the checkpoint.
    directory
        Of the checkpoint, for errors.

    Raises
    ------
    CheckpointError
        If names, shapes or types differ, something is missing, or elements of a live tensor share
        their memory.
    """
    boxes = boxes_of(state.tensors)
    # Also of tensors that other ranks have.
    saved_names = {name: saved_name(name, index) for name in state.tensors}
    _check_names(state, boxes, saved_names, index, directory)
    # Shared weights are read once. If they were not shared, the last are, as torch has it.
    places: dict[Any, tuple[str, LocalBox]] = {}
    live: dict[str, list[LocalBox]] = {}
    for name, local in boxes.items():
        if (saved := saved_names[name]) is None:
            continue
        for view in local.views():
            content = view.content
            if 0 in content.stride():
                _check_memory(view)
            memory = content.data_ptr()
            place = (memory, content.shape, content.stride()) if memory else (saved, view.box)
            if place in places:
                _check_parts(name, saved, *places[place], index)
            places[place] = (saved, view)
            live.setdefault(saved, []).append(view)
    read = {id(view) for _, view in places.values()}
    targets: dict[int, FileTargets] = {}
    found: dict[int, int] = {}
    seen = set()
    for number, file in enumerate(index.files):
        for piece_number, piece in enumerate(file.layout.pieces):
            # Some programs write what all ranks have once a rank.
            key = (piece.name, piece.offsets, piece.shape)
            if piece.name not in live or key in seen:
                continue
            seen.add(key)
            for local in live[piece.name]:
                _check_kind(local, piece, index, directory)
                if id(local) not in read:
                    continue
                common = overlap(piece.offsets, piece.shape, local.box.offsets, local.box.sizes)
                if common is None:
                    continue
                found[id(local)] = found.get(id(local), 0) + math.prod(common.lengths)
                part = local.content
                if common.lengths != local.box.sizes:
                    for axis, start in enumerate(common.target_offsets):
                        part = part.narrow(axis, start, common.lengths[axis])
                if number not in targets:
                    targets[number] = FileTargets(file.layout)
                targets[number].add(piece_number, part, offsets=common.source_offsets)
    for locals_ in live.values():
        for local in locals_:
            if id(local) in read and found.get(id(local), 0) != math.prod(local.box.sizes):
                raise CheckpointError(
                    f"{directory} has {found.get(id(local), 0)} of the "
                    f"{math.prod(local.box.sizes)} elements of {local.box.name} that this rank "
                    f"holds: a file of it is missing. Load another checkpoint."
                )
    return targets


def saved_name(name: str, index: StateIndex) -> str | None:
    """Return the name of a live tensor in the checkpoint, or None. Not collective."""
    # Other programs have no name for the model as a whole.
    for candidate in (name, name.partition(".")[2]) if index.plain_names else (name,):
        if candidate in index.aliases:
            return index.aliases[candidate]
        if candidate in index.shapes:
            return candidate
    return None


def _check_names(
    state: FlatState,
    boxes: Mapping[str, LocalBox],
    saved_names: Mapping[str, str | None],
    index: StateIndex,
    directory: Path,
) -> None:
    here = {saved for saved in saved_names.values() if saved is not None}
    # Some programs save one of the names of shared weights.
    covered = {
        (local.content.data_ptr(), local.box.shape)
        for name, local in boxes.items()
        if saved_names[name] is not None
    }
    missing = [
        name
        for name, local in boxes.items()
        if saved_names[name] is None and (local.content.data_ptr(), local.box.shape) not in covered
    ]
    missing += [name for name in state.values if name not in index.values]
    parts = {part.name for part in state.parts}
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
    complaints = [
        f"{directory} has no {_some(missing)}, which the state to be loaded has" if missing else "",
        f"{directory} has {_some(unexpected)}, which the state to be loaded has not"
        if unexpected
        else "",
    ]
    if any(complaints):
        names = (*index.shapes, *index.aliases, *index.values)
        held = sorted({name.partition(".")[0] for name in names})
        raise CheckpointError(
            f"{'; and '.join(filter(None, complaints))}. It holds {', '.join(held)}. Make model, "
            f"optimizer and all else as they were when it was saved, give them the same names, or "
            f"leave out what is not to be loaded."
        )


def _check_kind(local: LocalBox, piece: Piece, index: StateIndex, directory: Path) -> None:
    box, shape, types = local.box, index.shapes[piece.name], index.types
    known = None if types is None else types.get(piece.name, "")
    if (box.dtype, box.shape) != (piece.dtype, shape) or known not in (None, box.torch_type):
        saved = box._replace(dtype=piece.dtype, shape=shape, torch_type=known or "")
        raise CheckpointError(
            f"{box.name} is {box.kind}, and in {directory} it is {saved.kind}. Make the model as "
            f"it was when it was saved, or convert it after loading."
        )


def _check_parts(
    name: str, saved: str, other_saved: str, other: LocalBox, index: StateIndex
) -> None:
    """Refuse to read two things that were saved apart into one memory, but for weights of a model.

    Other programs do not tell of shared memory.
    """
    one, two = name.partition(".")[0], other.box.name.partition(".")[0]
    if saved != other_saved and one != two and not index.plain_names:
        raise CheckpointError(
            f"{name} is the same memory as {other.box.name}, and was saved apart from it: loading "
            f"one would overwrite the other. Give {one} tensors of its own, {name}.clone() for "
            f"instance."
        )


def _check_memory(local: LocalBox) -> None:
    """Refuse what `torch.Tensor.expand` made: its elements cannot be written one by one."""
    content = local.content
    if content.numel() and any(
        size > 1 and not stride
        for size, stride in zip(content.shape, content.stride(), strict=True)
    ):
        raise CheckpointError(
            f"{local.box.name} is {local.box.kind} in less memory: some of its elements are one "
            f"and the same, as after expand(), and cannot be loaded one by one. Put "
            f"{local.box.name}.clone() in its place before loading."
        )


def _some(names: Collection[str]) -> str:
    named = ", ".join(sorted(names)[:_NAMED])
    rest = len(names) - _NAMED
    return f"{named} and {rest} more" if rest > 0 else named
