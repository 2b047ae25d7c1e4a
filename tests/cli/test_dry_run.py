"""``hpctrain submit --dry-run`` where no controller of Slurm answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


# sinfo tries for nine seconds to reach a controller that is not there.
@pytest.fixture(params=["no controller", pytest.param("no answer", marks=pytest.mark.long)])
def no_controller(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's commands, as far as they are installed, and no controller."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\n")
    if request.param == "no answer":
        # Nobody listens there: it is the port of tcpmux.
        conf.write_text(
            "ClusterName=none\nSlurmctldHost=none(127.0.0.1)\nSlurmctldPort=1\n"
            "AuthType=auth/none\nNodeName=node1\nPartitionName=all Nodes=node1 Default=YES\n"
        )
    monkeypatch.setenv("SLURM_CONF", str(conf))


@pytest.mark.usefixtures("no_controller")
def test_a_request_with_a_shape_is_shown_without_a_controller(workplace: Any) -> None:
    ended = workplace("submit", "--dry-run", "-N", "2", "-p", "long", "train.py")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --partition=long"} <= set(lines)
    assert "hpctrain: warning: the limits of the partition are not checked: " in ended.stderr
    assert not workplace.run_dir().exists()


@pytest.mark.usefixtures("no_controller")
def test_a_request_without_a_shape_says_what_to_give(workplace: Any) -> None:
    ended = workplace("submit", "--dry-run", "train.py")
    assert ended.returncode == 2
    assert "the number of workers per node is unknown" in ended.stderr
    assert "SlurmConfig(nodes=...)" in ended.stderr


@pytest.mark.usefixtures("no_controller")
def test_a_script_that_is_the_job_is_shown_without_a_controller(workplace: Any) -> None:
    options = ["--script", "--workers", "4", "--ntasks-per-node", "2", "--dry-run"]
    ended = workplace("submit", *options, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "#SBATCH --nodes=2" in ended.stdout.splitlines()
    ended = workplace("submit", "--script", "--workers", "4", "--dry-run", "train.py")
    assert ended.returncode == 2
    assert "Give --nodes NODES or --ntasks-per-node" in ended.stderr


@pytest.mark.usefixtures("no_controller")
def test_a_submission_needs_the_controller(workplace: Any) -> None:
    ended = workplace("submit", "-N", "2", "train.py")
    assert ended.returncode == 3
    assert not workplace.run_dir().exists()
