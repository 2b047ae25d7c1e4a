"""A user's program, checked by mypy against the wheel: what fits is taken, the rest is named."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PROGRAM = """\
from typing import Any

from hpctrain import Checkpoint, ValidationConfig

def plain(checkpoint: Checkpoint) -> dict[str, float]:
    return {"x": 1.0}

def with_arguments(checkpoint: Checkpoint, rows: int, split: str = "") -> dict[str, Any]:
    return {}

def with_any(checkpoint: Checkpoint, **kwargs: Any) -> dict[str, Any]:
    return {}

def without_checkpoint(rows: int) -> dict[str, Any]:
    return {}

ValidationConfig(fn=plain)
ValidationConfig(fn=with_arguments)
ValidationConfig(fn=with_any)
ValidationConfig(fn=without_checkpoint)
"""


@pytest.fixture(scope="session")
def installed(environment: Path) -> Path:
    """Return the Python of an environment in which the wheel is installed."""
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", *(environment / "dist").glob("*.whl")], check=True)
    return environment / "bin" / "python"


def test_a_validation_function_may_have_the_arguments_that_it_needs(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    # Of a package that has no py.typed mypy takes no types, and says so in the line of the import.
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        [installed, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not re.match("PYTHON|MYPY", k)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    last = len(PROGRAM.splitlines())
    assert len(errors) == 1, done.stdout + done.stderr
    assert errors[0].startswith(f'program.py:{last}: error: Argument "fn" to "ValidationConfig"')
