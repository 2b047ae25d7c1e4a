"""Where a rank prints."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from hpctrain import timeouts
from hpctrain.worker import main

# 13 is EACCES, which a server that fails over may say for a while.
if int(sys.argv[2]) == 13:
    timeouts.STORAGE_FAILOVER_S = 0.6
opened, open_log = [], main.open_log

def fails_once(path):
    opened.append(path)
    if len(opened) == 1 or int(sys.argv[2]) == 13:
        raise OSError(int(sys.argv[2]), "for a moment", str(path))
    return open_log(path)

main.open_log = fails_once
main._redirect_output(Path(sys.argv[1]))
print("printed", flush=True)
"""


def run(log: Path, number: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(log), str(number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_log_that_cannot_be_opened_for_a_moment_is_opened_then(
    tmp_path: Path, number: int
) -> None:
    done = run(tmp_path / "rank.out", number)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank.out").read_text() == "printed\n"


def test_a_log_that_cannot_be_opened_at_all_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path / "rank.out", errno.EACCES)
    assert done.returncode != 0
    assert "for a moment" in done.stderr
