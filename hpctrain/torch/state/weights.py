"""`read_weights`: the model of a state that was saved, for those that only want that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError
from hpctrain.torch.state.find_index import MODEL_PART, find_index, model_key
from hpctrain.torch.state.load import load_into
from hpctrain.torch.state.state_dict.saved_trees import SavedTrees, make_whole
from hpctrain.world import SerialComm


def read_weights(directory: Path) -> dict[str, Any]:
    """Return the ``state_dict()`` of the model that was saved, on the CPU.

    Not collective.

    Raises
    ------
    CheckpointError
        If it is damaged, or no model was saved.
    """
    index = find_index(directory)
    if not any(map(model_key, index.shapes)):
        parts = sorted({name.partition(".")[0] for name in (*index.shapes, *index.values)})
        raise CheckpointError(
            f"{directory} holds the state of {', '.join(parts) or 'nothing'}, and of no model. "
            f"Report it with report_state(model=...)."
        )
    saved = SavedTrees(index, index.dtypes())
    weights: dict[str, Any] = {}
    for name in (*index.shapes, *index.aliases, *index.values):
        top = next((tree for tree in index.trees if name.startswith(f"{tree}.")), name)
        if (key := model_key(top)) is not None and key not in weights:
            weights[key] = saved.tree(top, saved.treedef(top), None, make_whole)
    load_into(
        directory, model=None, optimizer=None, others={MODEL_PART: weights}, ranks=SerialComm()
    )
    return weights
