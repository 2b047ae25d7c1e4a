"""``hpctrain checkpoints``: the checkpoints of a run, and which one a resume would use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hpctrain.cli.exit_codes import FAILED
from hpctrain.cli.export import export
from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.rundir.manifest import Manifest
    from hpctrain.rundir.paths import RunPaths

_LIST = "list"


class _ListUnlessNamed(TyperGroup):
    """Takes ``hpctrain checkpoints RUN`` for ``hpctrain checkpoints list RUN``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the verb, unless there is one."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_LIST, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return verbs, and runs to list."""
        runs = next(each for each in self.commands[_LIST].params if each.name == "run")
        return [
            *super().shell_complete(ctx, incomplete),
            *runs.shell_complete(ctx, incomplete),
        ]


checkpoints_app = typer.Typer(
    cls=_ListUnlessNamed,
    help="List the checkpoints of a run, or export one.\n\nhpctrain checkpoints RUN is short for "
    "hpctrain checkpoints list RUN.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
_COLUMNS = ("CHECKPOINT", "REPORT", "ATTEMPT", "RANKS", "FILES", "SIZE", "AGE", "STATE", "METRICS")
# Dropped in a narrow terminal, in this order.
_OPTIONAL = ("FILES", "ATTEMPT", "RANKS", "AGE", "SIZE")


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """The state of one checkpoint."""

    name: str
    state: str
    """``complete``, ``verified``, ``damaged``, ``unreadable`` at the moment, or ``set aside`` when
    a run resumed."""
    manifest: Manifest | None = None
    complaint: str | None = None
    """Why it is damaged or unreadable."""
    validation: str | None = None
    """``pending``, ``done`` or ``failed``; None if none was requested."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        manifest = self.manifest
        known = (
            {}
            if manifest is None
            else {
                "report": manifest.report,
                "attempt": manifest.attempt,
                "world_size": manifest.world_size,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "created_at": manifest.created_at,
                "versions": dict(manifest.versions),
                "metrics": dict(manifest.metrics),
                "validation": self.validation,
            }
        )
        return {"name": self.name, "state": self.state, "complaint": self.complaint, **known}


@checkpoints_app.command(_LIST)
def checkpoints(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every byte with the digests.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the checkpoints of a run, oldest first, and show which one a resume would use.

    Changes nothing. The exit code is 4 if one is damaged, or cannot be read.
    """
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.cli.terminal import width_of_output

    paths = find_run(run, storage)
    views = list(_views(paths, verify=verify))
    resumes_from = find_resumed(views)
    if json:
        print_json(
            {
                "path": str(paths.checkpoints),
                "resumes_from": resumes_from,
                "checkpoints": [view.to_json() for view in views],
            }
        )
    else:
        print(render(views, resumes_from, verified=verify, width=width_of_output()))
    if any(view.state in ("damaged", "unreadable") for view in views):
        raise typer.Exit(FAILED)


checkpoints_app.command()(export)


def find_resumed(views: list[CheckpointView]) -> str | None:
    """Return the checkpoint that a resume would use, or None. Pure."""
    if any(view.state == "unreadable" and view.manifest is None for view in views):
        # It may be the newest.
        return None
    for view in reversed(views):
        if view.state in ("complete", "verified"):
            return view.name
        if view.state == "unreadable":
            break
    return None


def render(
    views: list[CheckpointView],
    resumes_from: str | None,
    *,
    verified: bool,
    width: int | None = None,
) -> str:
    """Return the list as text. Pure, except for the time of day."""
    from hpctrain.cli.list_runs import fit_rows, render_rows
    from hpctrain.cli.run_view import format_age
    from hpctrain.cli.terminal import wrap
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import format_metrics, format_size

    rows: list[tuple[str, ...]] = []
    for view in views:
        manifest = view.manifest
        if manifest is None:
            rows.append((view.name, "", "", "", "", "", "", view.state, ""))
            continue
        rows.append(
            (
                view.name,
                str(manifest.report),
                str(manifest.attempt),
                str(manifest.world_size),
                str(len(manifest.files)),
                format_size(manifest.size),
                format_age(manifest.created_at),
                view.state,
                format_metrics(manifest.metrics, most=3),
            )
        )
    columns: tuple[str, ...] = _COLUMNS
    if any(view.validation is not None for view in views):
        columns = (*_COLUMNS[:-1], "VALIDATION", _COLUMNS[-1])
        rows = [
            (*row[:-1], view.validation or "", row[-1])
            for row, view in zip(rows, views, strict=True)
        ]
    table: list[Sequence[str]] = [columns, *rows]
    if width is not None:
        table = fit_rows(rows, width=width, columns=columns, names={}, optional=_OPTIONAL)
    lines = [render_rows(table[1:], table[0])] if rows else []
    texts = [view.complaint for view in views if view.complaint is not None]
    if resumes_from is None and any(view.state == "unreadable" for view in views):
        texts.append("fit() would not resume before the unreadable checkpoint can be read.")
    elif resumes_from is None:
        texts.append("There is no usable checkpoint: fit() would start from scratch.")
    elif verified:
        texts.append(f"Resuming would use {resumes_from}.")
    else:
        texts.append(f"Resuming would verify {resumes_from}, and use it if it is undamaged.")
    for text in texts:
        lines += wrap("", text, width)
    return show_controls("\n".join(lines))


def _validations(paths: RunPaths) -> dict[tuple[str, int], str]:
    """Return how validations have ended, by checkpoint and report."""
    from hpctrain.rundir.ledger import read_events

    return {
        (event["checkpoint"], event["report"]): "failed" if event.get("error") else "done"
        for event in read_events(paths)
        if event["event"] == "validation-ended"
        and isinstance(event.get("checkpoint"), str)
        and isinstance(event.get("report"), int)
    }


def _views(paths: RunPaths, *, verify: bool) -> Iterator[CheckpointView]:
    """Return the state of each checkpoint, and of its validation."""
    ended = _validations(paths)
    for view in _checked(paths, verify=verify):
        manifest = view.manifest
        if manifest is None:
            yield view
        elif manifest.validation is not None:
            yield replace(view, validation="pending")
        else:
            yield replace(view, validation=ended.get((manifest.name, manifest.report)))


def _checked(paths: RunPaths, *, verify: bool) -> Iterator[CheckpointView]:
    from hpctrain.bulk.unreadable import UnreadableError
    from hpctrain.errors import CheckpointError
    from hpctrain.rundir.store import CheckpointStore

    store = CheckpointStore(paths.checkpoints)
    for name in store.set_aside():
        yield CheckpointView(name=name, state="set aside")
    for entry in store.entries():
        name, manifest = entry.path.name, entry.manifest
        if manifest is None:
            state = "damaged" if entry.is_damaged else "unreadable"
            yield CheckpointView(name=name, state=state, complaint=entry.problem)
            continue
        if not verify:
            yield CheckpointView(name=name, state="complete", manifest=manifest)
            continue
        try:
            # So that a live run does not delete a checkpoint during the read.
            with store.open(manifest).as_directory():
                store.verify(manifest)
        except CheckpointError as error:
            if entry.path.exists():
                state = "unreadable" if isinstance(error, UnreadableError) else "damaged"
                yield CheckpointView(
                    name=name, state=state, manifest=manifest, complaint=str(error)
                )
        else:
            yield CheckpointView(name=name, state="verified", manifest=manifest)
