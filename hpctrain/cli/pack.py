"""``hpctrain pack``: the Python environment as one file, for the disks of compute nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import JsonOption

if TYPE_CHECKING:
    from hpctrain.pack.writer import Packed


def pack(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file that is made.",
            show_default="environment.tar, or .squashfs",
        ),
    ] = None,
    further: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="DIR",
            help="A further directory of modules, such as one of PYTHONPATH. Repeatable.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="tar, which nodes unpack, or squashfs, which they mount: a start takes less "
            "time and room. Needs squashfuse on nodes.",
        ),
    ] = "tar",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing FILE.")] = False,
    json: JsonOption = False,
) -> None:
    """Pack the Python environment that this command runs in into one file.

    SlurmConfig(environment_pack=FILE) brings it to the nodes of a job: ranks then import from
    there. The interpreter is in it, but for /usr/bin/python3, which each node has; the script is
    not. Editable installations become regular ones. An unchanged environment gives the same
    digest.
    """
    from hpctrain.checks import check_choice
    from hpctrain.pack.header import SQUASHFS, TAR
    from hpctrain.pack.writer import write_pack

    check_choice("--format", form, (TAR, SQUASHFS))
    file = Path(f"environment.{form}") if output is None else output
    packed = write_pack(file, further=further or (), overwrite=force, form=form)
    notes = unpacked_places(packed)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(packed, notes))
    else:
        print(render(packed, notes))


def unpacked_places(packed: Packed) -> list[str]:
    """Return the directories from which this process imports, and which are not packed."""
    import site
    import sys

    from hpctrain import environ

    own = [packed.pack.prefix, packed.pack.base, *packed.pack.further]
    own += packed.editable.values()
    places = [place for place in (environ.variable("PYTHONPATH") or "").split(":") if place]
    if site.ENABLE_USER_SITE:
        places += [place for place in sys.path if place == site.getusersitepackages()]
    whole = [Path(place).absolute() for place in places]
    return [
        str(place)
        for place in dict.fromkeys(whole)
        if place.is_dir() and not any(each and place.is_relative_to(each) for each in own)
    ]


def render(packed: Packed, not_packed: list[str]) -> str:
    """Return what was packed as text. Pure.

    Parameters
    ----------
    packed
        What was written.
    not_packed
        Directories that stay where they are.
    """
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_size

    pack = packed.pack
    lines = [
        f"packed {pack.prefix}",
        f"to {pack.path}" + ("" if pack.form == "tar" else f", an image of {pack.form}"),
        f"{packed.num_files} files, {format_size(pack.total_bytes)}, Python {pack.python}",
        f"sha256 {pack.sha256}",
    ]
    if pack.base:
        lines.append(f"with the interpreter of {pack.base}")
    elif packed.node_python is not None:
        lines.append(f"without the interpreter: each node needs {packed.node_python}")
    lines += [f"with {place}" for place in pack.further]
    lines += [f"with {name}, editable, from {place}" for name, place in packed.editable.items()]
    lines += [f"not packed: {place}" for place in not_packed]
    return show_controls("\n".join(lines))


def to_json(packed: Packed, not_packed: list[str]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    pack = packed.pack
    return {
        "path": pack.path,
        "sha256": pack.sha256,
        "bytes": pack.total_bytes,
        "files": packed.num_files,
        "prefix": pack.prefix,
        "form": pack.form,
        "python": pack.python,
        "base": pack.base or None,
        "node_python": packed.node_python,
        "editable": packed.editable,
        "further": list(pack.further),
        "not_packed": not_packed,
    }
