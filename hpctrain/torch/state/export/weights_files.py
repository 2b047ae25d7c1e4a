"""A checkpoint that is no state: its ``model.safetensors``, or what it is instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hpctrain.bulk.header import read_layout, read_start
from hpctrain.bulk.index import IndexedFile, StateIndex
from hpctrain.checkpoint_files import DICT_NAME
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.dcp.torch_files import METADATA_NAME
from hpctrain.torch.state.find_index import shapes_of

_WEIGHTS = re.compile(r"model(?:-\d+-of-(\d+))?\.safetensors")
_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_NAMED = 3


def find_weights_index(directory: Path) -> StateIndex:
    """Return an index of a checkpoint's ``model.safetensors``, in one file or several.

    Not collective.

    Raises
    ------
    CheckpointError
        If it has none: says what the checkpoint is.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.name[0] != ".")
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror}.") from error
    found = {name: match for name in names if (match := _WEIGHTS.fullmatch(name))}
    if not found:
        raise CheckpointError(f"{directory} {_kind(directory, names)}")
    counts = {match[1] for match in found.values()}
    (count, *others) = counts
    if others or len(found) != int(count or 1):
        raise CheckpointError(
            f"{directory} has {', '.join([*found][:_NAMED])} and in all {len(found)} such files, "
            f"which are not one whole model. Export another checkpoint."
        )
    files = tuple(IndexedFile(name=name, layout=read_layout(directory / name)) for name in found)
    return StateIndex(files=files, shapes=shapes_of(files), values={}, plain_names=True)


def tied_names(index: StateIndex, directory: Path) -> dict[str, str]:
    """Return names that files give for tensors which have another one. Not collective.

    ``safetensors.torch.save_model`` writes them into the metadata.
    """
    tied = {}
    for file in index.files:
        for name, other in read_metadata(directory / file.name).items():
            if name not in index.shapes and other in index.shapes:
                tied[name] = other
    return tied


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file. Not collective."""
    metadata = json.loads(read_start(path).header[8:]).get("__metadata__", {})
    return {str(name): str(value) for name, value in metadata.items()}


def _kind(directory: Path, names: list[str]) -> str:
    """Return what a directory without ``model.safetensors`` is, as the end of a sentence."""
    if (directory / METADATA_NAME).exists():
        return (
            "was written by torch.distributed.checkpoint, which has its own converter: "
            "torch.distributed.checkpoint.format_utils.dcp_to_torch_save()."
        )
    if any(name.startswith("state-") and "-of-" in name for name in names):
        return "has lost its state.json, or was never completed. Export another checkpoint."
    if DICT_NAME in names:
        return (
            f"is a dict that Checkpoint.from_dict() pickled ({DICT_NAME}). An export opens no "
            f"pickle: read it with to_dict(), and save its tensors with report_state() or "
            f"TorchCheckpoint.from_state_dict()."
        )
    if pickled := [name for name in names if name.endswith(_PICKLED)]:
        return (
            f"has {', '.join(pickled[:_NAMED])}, which torch.save() wrote. An export opens no "
            f"pickle: read it with torch.load(), and save the model with report_state() or "
            f"TorchCheckpoint.from_state_dict()."
        )
    rest = len(names) - _NAMED
    shown = ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"holds {shown or 'nothing'}, and neither state.json of report_state() nor "
        f"model.safetensors of TorchCheckpoint. Export a checkpoint that one of them wrote."
    )
