"""``hpctrain diff``: how two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.launch.run_diff import Difference

_NARROWEST = 40


def diff(
    run: RunArgument,
    other: Annotated[Path, typer.Argument(metavar="RUN2", help="The run to compare it with.")],
    storage: StorageOption = DEFAULT_STORAGE,
    code: Annotated[
        bool, typer.Option("--code", help="Show the lines of your modules that differ.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show how two runs differ: configuration, code, versions and outcome."""
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.errors import ConfigError
    from hpctrain.launch.run_diff import compare_runs, compare_sources
    from hpctrain.printable import show_controls

    first, second = find_run(run, storage), find_run(other, storage)
    if code:
        if json:
            raise ConfigError("--code is text, and --json is not. Give one of them.")
        print(show_controls(compare_sources(first, second)).rstrip("\n") or "no difference")
        return
    found = compare_runs(first, second)
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(first.root, second.root, found))
    else:
        from hpctrain.cli.terminal import width_of_output

        print(render(first.root, second.root, found, width=width_of_output()))


def render(
    first: Path, second: Path, differences: Sequence[Difference], *, width: int | None
) -> str:
    """Return the differences as text: each in one line, or in three and more where it is too long.

    Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.terminal import wrap
    from hpctrain.printable import show_controls

    lines = [f"- {first}", f"+ {second}"]
    for found in differences:
        line = f"{found.field}: {found.first} -> {found.second}"
        if width is None or len(line) <= max(width, _NARROWEST):
            lines.append(line)
        else:
            lines.append(f"{found.field}:")
            for key, value in (("  - ", found.first), ("  + ", found.second)):
                lines += wrap(key, value, width) or [key.rstrip()]
    if not differences:
        lines.append("no difference but name, place and time")
    return show_controls("\n".join(lines))


def to_json(first: Path, second: Path, differences: Sequence[Difference]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "first": str(first),
        "second": str(second),
        "differences": [
            {"field": found.field, "first": found.first, "second": found.second}
            for found in differences
        ],
    }
