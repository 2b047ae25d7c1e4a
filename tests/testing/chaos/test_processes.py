"""Processes of a trial are known by their names, also on the virtual nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.testing.chaos.injector import process_name

TELLS = """
import os, sys
from hpctrain.testing.chaos.injector import process_name
print(os.getpid(), process_name("/proc/self"), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of processes")
def test_a_process_has_the_same_name_on_its_node_and_outside() -> None:
    node = ["unshare", "--pid", "--fork", "--mount-proc"]
    process = subprocess.Popen(
        [*node, sys.executable, "-c", TELLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, name = process.stdout.readline().split(maxsplit=1)
    assert pid == "1"
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        assert process_name(f"/proc/{child}") == name.strip()
        assert process_name("/proc/self") != name.strip()
    finally:
        process.communicate(timeout=60)
