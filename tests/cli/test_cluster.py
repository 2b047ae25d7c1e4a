from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain.cli.main import app


def test_a_dry_run_says_what_would_be_started() -> None:
    args = ["cluster", "up", "--nodes", "2", "--gpus", "1", "--flat", "--state", "/tmp/x"]
    result = CliRunner().invoke(app, [*args, "--dry-run"])
    assert result.exit_code == 0
    assert (
        result.stdout == "would start 2 nodes with 4 CPUs and 1 GPUs each, mode flat, in /tmp/x\n"
    )


@pytest.mark.parametrize("verb", ["down", "status", "env"])
def test_a_cluster_that_is_not_there_is_named(verb: str) -> None:
    result = CliRunner().invoke(app, ["cluster", verb, "--state", "/tmp/nothing-here"])
    assert result.exit_code == 3
    assert result.stderr.startswith("hpctrain: There is no virtual cluster in /tmp/nothing-here")


def test_an_impossible_cluster_is_refused() -> None:
    result = CliRunner().invoke(app, ["cluster", "up", "--nodes", "0"])
    assert result.exit_code == 3
    assert "num_nodes=0 is out of range" in result.stderr


@pytest.mark.slurm
def test_a_cluster_is_looked_at_and_used(virtual_slurm: Any, workplace: Any) -> None:
    state = ("--state", str(virtual_slurm.state_dir))
    status = json.loads(workplace("cluster", "status", *state, "--json").stdout)
    assert status["ready"] is True
    assert [node["name"] for node in status["nodes"]] == list(virtual_slurm.node_names)
    ran = workplace("cluster", "exec", *state, "srun", "-N2", "pwd")
    assert ran.stdout.splitlines() == [str(workplace.path)] * 2
    assert workplace("cluster", "exec", *state, "--node", "node1", "false").returncode == 1
    exports = workplace("cluster", "env", *state).stdout
    squeue = subprocess.run(
        ["bash", "-c", f"{exports}\nsinfo --noheader --format=%P"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "main*" in squeue.stdout, squeue.stderr
