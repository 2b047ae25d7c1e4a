"""What the tests of JaxTrainer share: two runs of the example that nothing disturbs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded_digits.py"
TIMEOUT_S = 180

Example = Callable[..., Path]


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """Run the example, and return the run's directory."""

    def run(
        name: str,
        *options: str,
        launcher: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        storage: Path | None = None,
    ) -> Path:
        storage = storage or tmp_path_factory.mktemp("digits")
        command = [sys.executable, str(EXAMPLE), f"--storage={storage}", f"--name={name}"]
        done = subprocess.run(
            [*launcher, *command, "--epochs=3", *options],
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return storage / name

    return run


@pytest.fixture(scope="session")
def on_two_ranks(example: Example) -> Path:
    """The example on two ranks that mpiexec starts, and hpctrain does not."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    return example("two", "--workers=2", launcher=[str(mpiexec), "-n", "2"])
