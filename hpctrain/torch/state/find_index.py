"""`find_index`: what a directory holds of a state, ours or that of another program."""

from __future__ import annotations

from pathlib import Path

from hpctrain.bulk.header import read_layout
from hpctrain.bulk.index import INDEX_NAME, IndexedFile, StateIndex
from hpctrain.errors import CheckpointError
from hpctrain.rundir.paths import RunPaths
from hpctrain.torch.state.dcp import DCP_METADATA_NAME

MODEL_PART = "model"
"""Name of the model among the parts of a state."""
_NAMED = 3


def model_key(name: str) -> str | None:
    """Return the name that a value of a state has in the model; None if it is of another part.

    Not collective.
    """
    part, _, key = name.partition(".")
    return key if part == MODEL_PART and key else None


def find_index(directory: Path) -> StateIndex:
    """Return the index of a directory; made from their headers for files of other programs.

    Not collective: one rank calls it, and sends it to the others.

    Raises
    ------
    CheckpointError
        If there is no state that can be read, or it is damaged.
    """
    path = directory / INDEX_NAME
    try:
        return StateIndex.decode(path.read_bytes(), name=str(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if (directory / DCP_METADATA_NAME).exists():
        from hpctrain.torch.state.dcp.torch_files import find_dcp_index

        return find_dcp_index(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is no directory. Load another checkpoint.")
    names = sorted(entry.name for entry in directory.glob("*.safetensors"))
    if not names and RunPaths(directory).plan.is_file():
        raise CheckpointError(
            f"{directory} is the directory of a run. Load one of its checkpoints: "
            f"Result.from_path({str(directory)!r}).checkpoint is the newest."
        )
    if not names:
        raise CheckpointError(
            f"{directory} has neither {INDEX_NAME} nor files of safetensors, so it holds no state "
            f"that was completed. It has {_some_of(directory)}. Load a directory that "
            f"save_state(), torch.distributed.checkpoint or safetensors wrote; what torch.save() "
            f"wrote is read by torch.load()."
        )
    if any(name.startswith("state-") and "-of-" in name for name in names):
        raise CheckpointError(
            f"{directory} has lost its {INDEX_NAME}, or was never completed. Load another "
            f"checkpoint."
        )
    files = tuple(IndexedFile(name=name, layout=read_layout(directory / name)) for name in names)
    return StateIndex(files=files, shapes=shapes_of(files), values={}, plain_names=True)


def _some_of(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "") or "nothing"


def shapes_of(files: tuple[IndexedFile, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of whole tensors, by name, from the chunks in files. Not collective."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for chunk in file.layout.chunks:
            ends = tuple(o + n for o, n in zip(chunk.offsets, chunk.shape, strict=True))
            known = shapes.get(chunk.name, ends)
            shapes[chunk.name] = tuple(max(pair) for pair in zip(known, ends, strict=True))
    return shapes
