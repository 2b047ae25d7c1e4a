"""How tests run a script, or a command of hpctrain, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REFUSED_BY_FIPS = """
import hashlib

def _refuse(*args, **options):
    raise ValueError("[digital envelope routines] unsupported")

hashlib.blake2b = hashlib.blake2s = _refuse
"""
"""What makes a Python like one in FIPS mode, at the begin of its program or as `sitecustomize`."""


def run_python(
    *argv: object,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    code: int = 0,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, and variables beside those of this process, to its end.

    Its exit status has to be `code`.
    """
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
