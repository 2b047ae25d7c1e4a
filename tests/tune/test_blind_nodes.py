"""Nodes of an allocation that do not see the storage are left out, and cost no trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctrain.testing.slurm import VirtualCluster
from hpctrain.tune.ledger import SweepPaths, read_record
from tests.tune.test_allocation import TIMEOUT_S, places, printed, sweeping

pytestmark = pytest.mark.slurm

TRIALS = """
def train(config):
    say_where(config)
    hpctrain.report({"x": config["x"]})

scaling = ScalingConfig(
    num_workers=NODES, resources_per_worker={"CPU": 3}, slurm=SlurmConfig(nodes=NODES)
)
results = tune.Tuner(
    DataParallelTrainer(train, scaling_config=scaling),
    param_space={"train_loop_config": {"x": tune.grid_search([0, 1, 2, 3])}},
    run_config=RunConfig(storage_path=str(FOLDER / "runs"), name="sweep"),
).fit()
assert not results.errors, results.errors
"""


@contextmanager
def hidden(cluster: VirtualCluster, folder: Path, *nodes: str) -> Iterator[None]:
    """Let some nodes see another directory in the place of one, which is empty."""
    if cluster.spec.mode != "namespaces":
        pytest.skip("nodes have no mounts of their own")
    folder.mkdir()
    mounted: list[str] = []
    try:
        for node in nodes:
            done = cluster.run_on(node, ["mount", "-t", "tmpfs", "none", str(folder)])
            assert done.returncode == 0, done.stderr
            mounted.append(node)
        yield
    finally:
        for node in mounted:
            cluster.run_on(node, ["umount", str(folder)])


@pytest.mark.parametrize(("nodes", "of_trial"), [(2, 1), (3, 2)])
def test_a_node_that_does_not_see_the_storage_is_left_out_and_costs_no_trial(
    virtual_slurm: VirtualCluster, tmp_path: Path, nodes: int, of_trial: int
) -> None:
    code = f"NODES = {of_trial}\n{TRIALS}"
    with (
        hidden(virtual_slurm, tmp_path / "runs", "node2"),
        sweeping(virtual_slurm, tmp_path, code, nodes=nodes) as process,
    ):
        assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    assert printed(tmp_path).count("node node2 is left out: it does not see the run directory") == 1
    assert " is to go on: node2 cannot be used: it does not see the run directory" in (
        printed(tmp_path)
    )
    assert {place["node"] for place in places(tmp_path)} == {
        f"node{number}" for number in range(1, nodes + 1) if number != 2
    }
    trials = read_record(SweepPaths(root=tmp_path / "runs" / "sweep")).trials
    assert [trial.state.value for trial in trials.values()] == 4 * ["TERMINATED"]


def test_storage_that_no_node_sees_ends_the_sweep_and_no_trial(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    with (
        hidden(virtual_slurm, tmp_path / "runs", "node1", "node2"),
        sweeping(virtual_slurm, tmp_path, f"NODES = 1\n{TRIALS}", nodes=2) as process,
    ):
        assert process.wait(TIMEOUT_S) not in (0, None)
    assert "no node of this job sees the run directory" in printed(tmp_path)
    assert "All trials would fail like this one" in printed(tmp_path)
    trials = read_record(SweepPaths(root=tmp_path / "runs" / "sweep")).trials
    assert {trial.state.value for trial in trials.values()} == {"PENDING"}
