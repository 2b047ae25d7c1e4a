"""``hpctrain checkpoints export``: the model of a checkpoint as files of other programs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, StorageOption, complete_run

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.torch.state.export.export import Exported

_NAMED = 8
_LISTED = 6


def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:CHECKPOINT]",
            help="Directory of the run, or its name in --storage, and the name of a checkpoint, by "
            "default the newest. Or the directory of a checkpoint.",
            autocompletion=complete_run,
        ),
    ],
    dest: Annotated[
        Path,
        typer.Argument(
            metavar="DEST", help="What is made: a directory, or a file with --format torch."
        ),
    ],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors (Hugging Face), dcp (torch.distributed.checkpoint) or torch.",
        ),
    ] = "safetensors",
    max_shard_size: Annotated[
        str | None,
        typer.Option(help="Of a file of safetensors, such as 500MB or 2GiB.", show_default="5GB"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    storage: StorageOption = DEFAULT_STORAGE,
    json: JsonOption = False,
) -> None:
    """Write the model of a checkpoint for other programs.

    Every byte is compared with its digest, and what was written is read again, before DEST appears.
    """
    source = find_source(run, storage)
    from hpctrain.bulk.heap import return_large_blocks
    from hpctrain.torch.state.export.export import export_state

    return_large_blocks()
    exported = export_state(
        source,
        dest,
        format=format_,  # type: ignore[arg-type]  # checked by export_state
        max_shard_size=max_shard_size,
        overwrite=force,
    )
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(source.path, exported))
    else:
        from hpctrain.cli.terminal import width_of_output

        print(render(source.path, exported, width=width_of_output()))


def find_source(text: str, storage: Path) -> Checkpoint:
    """Return the checkpoint that an argument names. Not collective.

    Parameters
    ----------
    text
        A run, a run and the name of a checkpoint, or the directory of a checkpoint.
    storage
        Directory of runs.

    Raises
    ------
    ConfigError
        If there is none.
    """
    from hpctrain.checkpoint import Checkpoint
    from hpctrain.cli.stored_runs import find_run, is_run
    from hpctrain.rundir.paths import RunPaths

    path = Path(text)
    # A colon may be part of a name.
    for root in (path, storage / path):
        if is_run(root):
            return _choose(RunPaths(root.absolute()), None)
    if path.is_dir():
        return Checkpoint.from_directory(path)
    name, colon, checkpoint = text.rpartition(":")
    if not (colon and name):
        return _choose(find_run(path, storage), None)
    return _choose(find_run(Path(name), storage), checkpoint)


def _choose(paths: RunPaths, name: str | None) -> Checkpoint:
    from hpctrain.errors import ConfigError
    from hpctrain.rundir.store import CheckpointStore

    store = CheckpointStore(paths.checkpoints)
    entries = store.entries()
    for entry in reversed(entries):
        if name is None and entry.manifest is None and not entry.is_damaged:
            raise ConfigError(
                f"{entry.problem} It may be the newest. Name the one to export: RUN:CHECKPOINT."
            )
    for entry in reversed(entries):
        if entry.path.name == name or (name is None and entry.manifest is not None):
            if entry.manifest is None:
                raise ConfigError(f"{entry.problem} Name another checkpoint.")
            return store.open(entry.manifest)
    names = [entry.path.name for entry in entries if entry.manifest is not None]
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    known = f"It has {', '.join(names[-_NAMED:])}{rest}." if names else "It has none yet."
    what = "complete checkpoint" if name is None else f"checkpoint {name!r}"
    raise ConfigError(
        f"run {paths.root} has no {what}. {known} "
        f"hpctrain checkpoints {shlex.quote(str(paths.root))} lists them."
    )


def render(source: Path, exported: Exported, *, width: int | None) -> str:
    """Return what was written as text. Pure.

    Parameters
    ----------
    source
        The checkpoint.
    exported
        What was written.
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_size

    size, files = format_size(exported.num_bytes), len(exported.files)
    lines = [
        f"exported {source}",
        f"to {exported.path}",
        f"{exported.format}: {exported.num_tensors} tensors, {size}, {files} "
        f"file{'s' if files > 1 else ''}",
    ]
    if exported.aliases:
        lines.append(_listed("shared", [f"{a} = {b}" for a, b in exported.aliases.items()], width))
    if exported.left_out:
        lines.append(_listed("left out of the model's state", list(exported.left_out), width))
    if exported.other_parts:
        lines.append(_listed("not part of the model", list(exported.other_parts), width))
    if not exported.is_verified:
        lines.append("not verified: the checkpoint has no digests")
    return show_controls("\n".join(lines))


def _listed(what: str, names: list[str], width: int | None) -> str:
    """Return names in a line as far as they fit, else with how many more there are."""
    line = f"{what}: {', '.join(names)}"
    if width is None or len(line) <= width:
        return line
    for shown in range(min(len(names) - 1, _LISTED), 0, -1):
        line = f"{what}: {', '.join(names[:shown])} and {len(names) - shown} more"
        if len(line) <= width:
            return line
    return line


def to_json(source: Path, exported: Exported) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "checkpoint": str(source),
        "path": str(exported.path),
        "export_format": exported.format,
        "files": list(exported.files),
        "tensors": exported.num_tensors,
        "bytes": exported.num_bytes,
        "aliases": dict(exported.aliases),
        "left_out": list(exported.left_out),
        "other_parts": list(exported.other_parts),
        "verified": exported.is_verified,
    }
