"""Options and arguments that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs with a prefix: the shell itself completes directories.

    Not collective.
    """
    from hpctrain.cli.stored_runs import find_runs

    storage = ctx.params.get("storage") or DEFAULT_STORAGE
    names = [path.name for path in find_runs(Path(storage))]
    return [name for name in names if name.startswith(incomplete)]


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Directory of the run, or its name in --storage.",
        autocompletion=complete_run,
    ),
]
StorageOption = Annotated[
    Path,
    typer.Option("--storage", "-s", help="Directory of runs: RunConfig(storage_path=...)."),
]
ExistingOption = Annotated[
    str,
    typer.Option(
        "--existing",
        help="What to do with an existing run of this name: auto, resume, restart (renames the "
        "old one, unless it is running) or error. Overrides the script's RunConfig(existing=...).",
        show_default="what the script says, else auto",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", "--dryrun", help="Print what would be done, and do nothing.")
]
ArgsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="Its own arguments, all that follow.")
]
NowOption = Annotated[
    bool, typer.Option("--now", help="End it at once, without a last checkpoint.")
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="As a job: print its id, and do not follow it.")
]

# By field of SlurmConfig and ScalingConfig.
_FLAGS = {
    "num_workers": "--workers",
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "time": "--time",
    "nodes": "--nodes",
    "tasks_per_node": "--ntasks-per-node",
    "constraint": "--constraint",
    "site": "--site",
}

DEFAULT_STORAGE = Path("hpctrain_runs")
"""Where RunConfig puts runs by default."""


def request_existing(policy: str) -> None:
    """Apply a given ``--existing`` to every ``fit()`` of this process. Not collective.

    Raises
    ------
    ConfigError
        If it is none.
    """
    from hpctrain import environ
    from hpctrain.config import EXISTING_POLICIES
    from hpctrain.errors import ConfigError

    if policy and policy not in EXISTING_POLICIES:
        raise ConfigError(f"--existing={policy}: one of {', '.join(EXISTING_POLICIES)} is needed.")
    if policy:
        environ.request_existing(policy)


def request_launch(*, dry_run: bool, detach: bool) -> None:
    """Apply ``--dry-run``, or else ``--detach``, to every ``fit()`` of this process.

    Not collective.
    """
    from hpctrain import environ

    if dry_run:
        environ.request_dry_run()
    elif detach:
        environ.request_detach()


@contextmanager
def naming_flags(*, without: Collection[str] = ()) -> Iterator[None]:
    """Make an error name flags instead of the configuration fields that they set.

    Not collective.

    Parameters
    ----------
    without
        Fields for which the verb has no flag.
    """
    from hpctrain.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        raise ConfigError(name_flags(str(error), without=without)) from error


def name_flags(text: str, *, without: Collection[str] = ()) -> str:
    """Return a text that names flags instead of the configuration fields that they set. Pure.

    Parameters
    ----------
    without
        Fields for which the verb has no flag.

    Examples
    --------
    >>> name_flags("SlurmConfig(partition=...): 'sinfo' lists others")
    "--partition PARTITION: 'sinfo' lists others"
    """
    fields = re.compile(r"SlurmConfig\((\w+)=(.*?)\)|\b(\w+)=(\d+)\b")
    return fields.sub(partial(_as_flag, without=without), text)


def _as_flag(field: re.Match[str], *, without: Collection[str]) -> str:
    name, value = field[1] or field[3], (field[2] or field[4]).strip("'\"")
    if name in without or (flag := _FLAGS.get(name)) is None:
        return field[0]
    return f"{flag} {flag.lstrip('-').upper() if value == '...' else value}"
