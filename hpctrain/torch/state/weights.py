"""`read_weights`: the model of a state that was saved, for those that only want that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hpctrain.errors import CheckpointError
from hpctrain.torch.state.boxes import live_kind
from hpctrain.torch.state.find import find_index
from hpctrain.torch.state.load import load_into
from hpctrain.torch.state.values import decode
from hpctrain.world import SerialComm

_PART = "model"


def read_weights(directory: Path) -> dict[str, Any]:
    """Return the ``state_dict()`` of the model that was saved, on the CPU.

    Not collective.

    Raises
    ------
    CheckpointError
        If it is damaged, or no model was saved.
    """
    index = find_index(directory)
    dtypes = {piece.name: piece.dtype for file in index.files for piece in file.layout.pieces}
    weights: dict[str, Any] = {}
    for name in index.shapes:
        if (key := _key_of(name)) is not None:
            dtype, shape = live_kind(name, dtypes[name], index)
            weights[key] = torch.empty(shape, dtype=dtype)
    if not weights:
        parts = sorted({name.partition(".")[0] for name in (*index.shapes, *index.values)})
        raise CheckpointError(
            f"{directory} holds the state of {', '.join(parts) or 'nothing'}, and of no model. "
            f"Report it with report_state(model=...)."
        )
    load_into(directory, model=None, optimizer=None, others={_PART: weights}, ranks=SerialComm())
    for name, shared in index.aliases.items():
        key, other = _key_of(name), _key_of(shared)
        if key is not None and other is not None:
            weights[key] = weights[other]
    for name, value in index.values.items():
        if (key := _key_of(name)) is not None:
            weights[key] = decode(value)
    return weights


def _key_of(name: str) -> str | None:
    part, _, key = name.partition(".")
    return key if part == _PART and key else None
