"""Modules that are edited after they were packed are not left out of a run in silence."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.pack.conftest import SmallEnvironment, add_editable

PLANS = """
import sys
from hpctrain import HpctrainError, SlurmConfig
from hpctrain.launch.environment_pack import plan_environment_pack

try:
    plan_environment_pack(SlurmConfig(environment_pack=sys.argv[1]), launcher="slurm")
except HpctrainError as error:
    print(error)
"""


def plan(environment: SmallEnvironment, pack: Path) -> str:
    """Return what is said to a run that is to start in a pack."""
    done = subprocess.run(
        [environment.python, "-c", PLANS, str(pack)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["editable", "--with"])
def test_a_run_does_not_start_with_modules_as_they_were_before_an_edit(
    own_environment: SmallEnvironment, tmp_path: Path, kind: str
) -> None:
    modules = tmp_path / "my modules" / "mine"
    modules.mkdir(parents=True)
    (modules / "__init__.py").write_text("FACTOR = 3\n")
    words = []
    if kind == "editable":
        add_editable(own_environment, "mine", {"mine": modules})
    else:
        words = ["--with", str(modules.parent)]
    pack = tmp_path / "my environment.tar"
    own_environment.pack(pack, *words)
    assert plan(own_environment, pack) == ""

    # The same again, by another date, and what Python writes itself.
    (modules / "__init__.py").write_text("FACTOR = 3\n")
    os.utime(modules / "__init__.py", (1, 1))
    (modules / "__pycache__").mkdir()
    (modules / "__pycache__/x.pyc").write_bytes(b"x")
    assert plan(own_environment, pack) == ""

    (modules / "__init__.py").write_text("FACTOR = 9\n")
    said = plan(own_environment, pack)
    assert f"have changed since they were packed in {pack}." in said
    assert str(modules.parent) in said
    command = said[said.index("hpctrain pack") :].strip()
    own_environment.run("hpctrain.cli", *shlex.split(command)[1:])
    assert plan(own_environment, pack) == ""

    (modules / "further.py").touch()
    assert "have changed since" in plan(own_environment, pack)
