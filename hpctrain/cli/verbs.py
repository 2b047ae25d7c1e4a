"""Which module has which verb of ``hpctrain``: it is imported when the verb is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from hpctrain.cli.exit_codes import Verbs

VERBS: Mapping[str, str] = {
    "run": "run.run",
    "submit": "submit.submit",
    "doctor": "doctor.doctor",
    "status": "status.status",
    "why": "why.why",
    "list": "list_runs.list_runs",
    "top": "top.top",
    "history": "history.history",
    "diff": "diff.diff",
    "replay": "replay.replay",
    "report": "report.report",
    "logs": "logs.logs",
    "attach": "attach.attach",
    "profile": "profile.profile",
    "wait": "wait.wait",
    "cancel": "cancel.cancel",
    "sync": "sync.sync",
    "pack": "pack.pack",
    "template": "template.template",
    "predict": "predict.predict",
    "serve": "serve.serve",
    "chaos": "chaos.chaos",
    "checkpoints": "checkpoints.checkpoints_app",
    "cluster": "cluster.cluster_app",
    "install": "install.install_app",
    "site": "site.site_app",
    "tune": "tune.tune_app",
}
"""Module of `hpctrain.cli` and the function there, or the group of verbs, in the order of
``--help``."""
# Arguments after SCRIPT, and after the command of `cluster exec`, are not parsed here.
_REST_IS_VERBATIM = ("run", "submit", "doctor", "chaos")


class LazyCommands(Mapping[str, Any]):
    """The commands of `VERBS`, each loaded when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the command of a verb."""
        if name not in self._loaded:
            self._loaded[name] = _load(name, VERBS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names of all verbs."""
        return iter(VERBS)

    def __len__(self) -> int:
        """Return the number of verbs."""
        return len(VERBS)


class LazyVerbs(Verbs):
    """The verbs of `VERBS`: the module of the one that is called is imported, and no other one."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()


def _load(name: str, place: str) -> Any:
    module, _, attribute = place.partition(".")
    found = getattr(import_module(f"hpctrain.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        of_one = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        settings = {"allow_interspersed_args": False} if name in _REST_IS_VERBATIM else None
        of_one.command(name, context_settings=settings)(found)
        found = of_one
    command = typer.main.get_command(found)
    command.name = name
    return command
