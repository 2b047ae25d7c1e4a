"""A Horovod that is not there, or cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import ConfigError

TIMEOUT_S = 120

BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
from hpctrain import RunConfig, ScalingConfig
from hpctrain.horovod import HorovodTrainer
HorovodTrainer(
    print,
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path=sys.argv[2], verbose=0),
).fit()
"""


@pytest.mark.parametrize(
    "broken",
    [
        "raise ModuleNotFoundError('No module named horovod')",
        "raise OSError('libmpi.so.40: cannot open shared object file')",
    ],
    ids=["missing", "of another MPI"],
)
def test_a_horovod_that_cannot_be_loaded_is_an_error_with_the_command_that_builds_it(
    tmp_path: Path, broken: str
) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text(broken)
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path), str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == ConfigError.exit_code
    message = done.stderr.splitlines()[-1]
    assert "ConfigError: the workers cannot load Horovod with torch 2" in message
    assert message.endswith("hpctrain install horovod")
