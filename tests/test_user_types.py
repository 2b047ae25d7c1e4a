"""A user's programs, checked by a user's mypy: what fits is taken, what does not is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def test_a_validation_function_may_have_the_arguments_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    last = len(PROGRAM.splitlines())
    assert len(errors) == 1, done.stdout + done.stderr
    assert errors[0].startswith(f'program.py:{last}: error: Argument "fn" to "ValidationConfig"')
