"""``hpctrain attach``: follow a run to its end."""

from __future__ import annotations

from typing import Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, RunArgument, StorageOption


def attach(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="Show the output of every rank, not only of rank 0.")
    ] = False,
) -> None:
    """Follow a run to its end, and end as it ends.

    Ctrl-C detaches: the run continues.
    """
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.launch.follow import follow_to_end

    follow_to_end(find_run(run, storage), verbose=2 if all_ranks else 1)
