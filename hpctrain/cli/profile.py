"""``hpctrain profile``: traces of ranks of a run, while it runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, RunArgument, StorageOption

_MOST_RANKS = 64


def profile(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    ranks: Annotated[
        str, typer.Option("--ranks", help="Ranks and ranges of ranks: 0,5 or 0-3,8.")
    ] = "0",
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=200, help="Steps of torch's optimizer to profile.")
    ] = 20,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=0.1, help="How long ranks of other frameworks are sampled, by time."
        ),
    ] = 10.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the trace (.json.gz).")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for all ranks.")
    ] = 300.0,
) -> None:
    """Profile ranks of a run that trains, without a restart.

    The traces of torch's profiler, or of a sampler for other frameworks, are put into one file for
    https://ui.perfetto.dev.
    """
    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.cli.terminal import width_of_output, wrap
    from hpctrain.errors import LaunchError
    from hpctrain.launch.profile import profile_run
    from hpctrain.printable import show_controls

    paths = find_run(run, storage)
    numbers = _parse_ranks(ranks)
    target = output or _free_name(paths.root.name)
    found = profile_run(
        paths,
        ranks=numbers,
        steps=steps,
        seconds=seconds,
        output=target,
        timeout_s=timeout,
        on_asked=lambda: say(f"asked {paths.root.name} for traces; waiting for them"),
    )
    written = f"{found.path}: rank {', '.join(map(str, found.ranks))}. Open it in ui.perfetto.dev"
    print("\n".join(wrap("", show_controls(written), width_of_output())))
    if found.failed:
        raise LaunchError(
            "without "
            + "; ".join(f"rank {rank}: {why}" for rank, why in sorted(found.failed.items()))
        )


def _free_name(run: str) -> Path:
    """Return the name of a file that is not there yet."""
    names = (f"-{number}" if number > 1 else "" for number in itertools.count(1))
    paths = (Path(f"{run}-profile{name}.json.gz") for name in names)
    return next(path for path in paths if not path.exists())


def _parse_ranks(ranks: str) -> list[int]:
    """Return the numbers of ``0-3,8``."""
    from hpctrain.errors import ConfigError

    numbers: list[int] = []
    for part in ranks.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ConfigError(
                f"--ranks {ranks!r}: numbers and ranges of ranks, such as 0,5 or 0-3."
            )
        if int(last or first) < int(first):
            raise ConfigError(f"--ranks {ranks!r}: {part} ends before it begins.")
        if int(last or first) - int(first) >= _MOST_RANKS:
            raise ConfigError(f"--ranks {ranks!r}: at most {_MOST_RANKS}; a trace has megabytes.")
        numbers += range(int(first), int(last or first) + 1)
    if len(numbers) > _MOST_RANKS or not numbers:
        raise ConfigError(f"--ranks {ranks!r}: 1 to {_MOST_RANKS} ranks; a trace has megabytes.")
    return numbers
