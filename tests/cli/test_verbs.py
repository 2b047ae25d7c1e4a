from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hpctrain.cli.main import app
from hpctrain.cli.verbs import VERBS

CODE = """
import sys
from hpctrain.cli.main import app
try:
    app(sys.argv[1:], prog_name="hpctrain")
except SystemExit:
    pass
verbs = {place.partition(".")[0] for place in sys.modules["hpctrain.cli.verbs"].VERBS.values()}
print("imported", sorted(verb for verb in verbs if f"hpctrain.cli.{verb}" in sys.modules))
"""


@pytest.mark.parametrize(
    ("words", "imported"),
    [(["history", "."], ["history"]), (["site", "--help"], ["site"]), (["--version"], [])],
)
def test_a_verb_imports_the_module_of_no_other_one(
    tmp_path: Path, words: list[str], imported: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"imported {imported}", done.stderr


def test_all_verbs_have_a_command_of_their_name_and_one_line_of_help() -> None:
    group: Any = typer.main.get_command(app)
    assert list(group.commands) == list(VERBS)
    for name, command in group.commands.items():
        assert command.name == name
        assert command.get_short_help_str()
    with pytest.raises(KeyError):
        group.commands["nonsense"]
