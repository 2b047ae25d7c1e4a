"""The part of the tutorial that happens on a cluster prints there what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from code_blocks import BLOCKS, CHECKOUT, apart, assert_promised, block

from hpctrain.testing.slurm import VirtualCluster

PAGE = (CHECKOUT / "docs/tutorial.rst").read_text().splitlines()
# Before that, and in the last block, `hpctrain cluster` starts and ends what a fixture is here.
FIRST = PAGE.index("From a login node")
STEPS = [
    (command, lines.splitlines())
    for shown in BLOCKS
    if shown.page == "tutorial.rst" and shown.line > FIRST and "hpctrain cluster" not in shown.text
    for command, lines in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", shown.text, re.MULTILINE)
]


@pytest.mark.slurm
def test_the_tutorial_on_a_cluster(virtual_slurm: VirtualCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block("tutorial-train"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCTRAIN_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    assert len(STEPS) == 6
    for command, promised in STEPS:
        argv = virtual_slurm.login_command(["bash", "-c", command], cwd=tmp_path)
        ended = subprocess.run(
            argv,
            cwd=tmp_path,
            env={**kept, "PATH": path, "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        assert ended.returncode == 0, ended.stdout
        # How far a job has come by then is a matter of speed.
        if not command.startswith("hpctrain status"):
            seen = sorted(apart(ended.stdout.splitlines()))
            assert_promised(sorted(apart(promised)), "\n".join(seen))
