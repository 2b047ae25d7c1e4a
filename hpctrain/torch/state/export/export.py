"""`export_state`: the model of a checkpoint as files of other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.rundir.files import write_unseen
from hpctrain.torch.state.export.destination import making
from hpctrain.torch.state.export.saved_model import SavedModel, find_model

__all__ = ["Exported", "export_state"]

ExportFormat = Literal["safetensors", "dcp", "torch"]
_SHARD_SIZE = "5GB"
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What `export_state` wrote."""

    path: Path
    """The directory, or the file."""
    format: ExportFormat
    files: tuple[str, ...]
    """Names of the files."""
    num_tensors: int
    num_bytes: int
    """Of the tensors."""
    aliases: Mapping[str, str]
    """Further names of tensors, as of tied weights, with the name of the tensor."""
    left_out: tuple[str, ...]
    """Entries of the model's ``state_dict()`` that the format does not hold."""
    other_parts: tuple[str, ...]
    """What else the checkpoint has, such as the optimizer."""
    is_verified: bool
    """Whether the checkpoint has digests, which its bytes were compared with."""


def export_state(
    source: Checkpoint | str | PathLike[str],
    target: str | PathLike[str],
    *,
    format: ExportFormat = "safetensors",
    max_shard_size: int | str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the model of a checkpoint for other programs.

    Not collective: one process does it, also without a GPU. It reads the checkpoint in blocks,
    however large the model is and however many ranks saved it, and compares them with their
    digests. What it wrote is read again and compared before it appears at `target`, complete and on
    disk. No pickle of the checkpoint is opened.

    Parameters
    ----------
    source
        What `report_state` saved as ``model=``, or a `TorchCheckpoint` or another checkpoint with a
        ``model.safetensors``; or the directory of one.
    target
        What is made: a directory, or a file if `format` is ``torch``. Its parent exists.
    format
        ``safetensors``: ``model.safetensors``, as ``from_pretrained()`` of Hugging Face reads it,
        with the ``config.json`` that lies in the checkpoint. ``dcp``: a directory for
        ``torch.distributed.checkpoint.load``. ``torch``: a file for ``torch.load``.
    max_shard_size
        Bytes of a file of ``safetensors``, as a number or like ``"5GB"`` and ``"500MiB"``: a larger
        model becomes several files and an index. A tensor is in one file. None is 5 GB.
    overwrite
        Whether an earlier export at `target` is replaced.

    Returns
    -------
    Exported
        What was written, and what was left out.

    Raises
    ------
    CheckpointError
        If the checkpoint is damaged or of another kind, or the disk is full. `target` is as before.
    ConfigError
        If `target` exists or cannot be there, or the format does not support a tensor.
    """
    if format not in get_args(ExportFormat):
        raise ConfigError(
            f"format={format!r}: one of {', '.join(get_args(ExportFormat))} is needed."
        )
    if max_shard_size is not None and format != "safetensors":
        raise ConfigError(
            f"max_shard_size={max_shard_size!r} with format={format!r}: only files of safetensors "
            f"are split. Leave it out, or export to safetensors."
        )
    max_shard_bytes = parse_size(_SHARD_SIZE if max_shard_size is None else max_shard_size)
    with ExitStack() as held:
        if isinstance(source, Checkpoint):
            # So that the run does not delete it meanwhile.
            source = held.enter_context(source.as_directory())
        path = Path(target).absolute()
        model = find_model(Path(source))
        beside = held.enter_context(
            making(path, is_file=format == "torch", overwrite=overwrite, is_ours=_is_ours)
        )
        left_out = (*model.trees, *model.values)
        if format == "torch":
            from hpctrain.torch.state.export.torch_file import plain_values, write_torch

            write_torch(model, beside / path.name)
            left_out = tuple(name for name in left_out if name not in plain_values(model))
        else:
            _write_directory(model, beside, format=format, max_shard_bytes=max_shard_bytes)
        files = tuple(sorted(entry.name for entry in beside.iterdir()))
    return Exported(
        path=path,
        format=format,
        files=files,
        num_tensors=len(model.tensors),
        num_bytes=model.size,
        aliases=model.aliases,
        left_out=left_out,
        other_parts=model.other_parts,
        is_verified=model.is_verified,
    )


def parse_size(size: int | str) -> int:
    """Return a size in bytes. Not collective.

    Raises
    ------
    ConfigError
        If it is none.

    Examples
    --------
    >>> parse_size("5GB"), parse_size("2MiB")
    (5000000000, 2097152)
    """
    found = _SIZE.fullmatch(str(size).strip())
    num_bytes = 0
    if found:
        base = 1024 if found[3] else 1000
        num_bytes = int(found[1]) * base ** " kmgt".index(found[2].lower() or " ")
    if num_bytes < 1:
        raise ConfigError(
            f"max_shard_size={size!r}: a number of bytes is needed, such as 5GB or 500MiB."
        )
    return num_bytes


def _is_ours(name: str) -> bool:
    from hpctrain.torch.state.export.dcp_files import is_dcp_export
    from hpctrain.torch.state.export.safetensors_files import is_safetensors_export

    return is_dcp_export(name) or is_safetensors_export(name)


def _write_directory(
    model: SavedModel, directory: Path, *, format: ExportFormat, max_shard_bytes: int
) -> None:
    if format == "dcp":
        from hpctrain.torch.state.export.dcp_files import write_dcp

        write_dcp(model, directory)
    else:
        from hpctrain.torch.state.export.safetensors_files import write_safetensors

        write_safetensors(model, directory, max_shard_bytes=max_shard_bytes)
    for name in model.configs:
        write_unseen(directory / name, (model.directory / name).read_bytes())
