from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

import hpctrain
from hpctrain.cli.exit_codes import Verbs, exit_code
from hpctrain.cli.main import app
from hpctrain.errors import (
    CheckpointError,
    ConfigError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
    WorkerError,
)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, 0),
        (ConfigError("x"), 2),
        (LaunchError("x"), 3),
        (LaunchError("x", transient=True), 3),
        (TrainingFailedError("x"), 4),
        (WorkerError("x"), 4),
        (CheckpointError("x"), 4),
        (RunStoppedError("x"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_outcome_has_its_exit_code(outcome: BaseException | None, code: int) -> None:
    assert exit_code(outcome) == code
    app = typer.Typer(cls=Verbs, rich_markup_mode=None)

    @app.command()
    def verb() -> None:
        if outcome is not None:
            raise outcome

    @app.command()
    def other() -> None:
        pass

    result = CliRunner().invoke(app, ["verb"])
    assert result.exit_code == code
    assert result.stderr == ("hpctrain: x\n" if str(outcome) == "x" else "")


def test_the_help_names_every_verb_and_every_exit_code() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert re.findall(r"^  ([a-z]+)  ", result.stdout, re.MULTILINE) == [
        *(
            "run",
            "submit",
            "doctor",
            "status",
            "why",
            "list",
            "top",
            "history",
            "diff",
            "replay",
            "report",
            "logs",
        ),
        *("attach", "profile", "wait", "cancel", "sync", "pack", "template", "predict", "serve"),
        *("chaos", "checkpoints", "cluster", "install", "site", "tune"),
    ]
    assert "Exit codes: 0 fine, 2 usage" in result.stdout


@pytest.mark.parametrize(
    "args", [["status"], ["frobnicate"], ["logs", "x", "--rank", "-1"], ["submit", "-N", "0", "x"]]
)
def test_what_cannot_be_parsed_is_a_usage_error(args: list[str]) -> None:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"hpctrain {hpctrain.__version__}\n")
