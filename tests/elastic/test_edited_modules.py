"""Modules of the user's are edited while the ranks of a larger group wait to begin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

# What each rank has imported is in a file of its own. The second attempt reports nothing until a
# file is there, so its ranks do not leave before.
CODE = """
import json, sys, time
from pathlib import Path

import hpctrain
import hpctrain.collective
from hpctrain import (
    Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig,
)

def train(config):
    import outer

    here, world = Path(config["here"]), hpctrain.get_context().world
    waited = any(word.startswith("--spare=") for word in sys.orig_argv)
    name = f"{world.attempt}-{world.world_rank}"
    (here / f"new-{name}").write_text(json.dumps([outer.VERSION, outer.inner.VERSION, waited]))
    (here / f"new-{name}").rename(here / f"here-{name}")
    while True:
        hpctrain.collective.barrier(timeout_s=600)
        while world.attempt == 2 and not (here / "go").exists():
            time.sleep(0.02)
        hpctrain.report({}, Checkpoint.from_dict({}) if world.world_rank == 0 else None)
        if hpctrain.should_stop() or world.attempt == 3:
            return
        time.sleep(0.1)

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    DataParallelTrainer(
        train,
        train_loop_config={"here": request["storage"]},
        scaling_config=ScalingConfig(
            num_workers=tuple(request["workers"]),
            elastic_resize_monitor_interval_s=1.0,
            slurm=SlurmConfig(tasks_per_node=1),
        ),
        run_config=RunConfig(
            storage_path=request["storage"],
            name="run",
            snapshot=request["slurm"]["snapshot"],
            failure_config=FailureConfig(node_timeout_s=6.0),
        ),
    ).fit()
"""


@pytest.mark.parametrize(("snapshot", "expected"), [(True, "as it was"), (False, "edited")])
def test_a_larger_group_that_waited_imports_all_of_the_snapshot_or_all_of_the_edit(
    make_cluster: Callable[..., VirtualCluster],
    start_run: Callable[..., Any],
    tmp_path: Path,
    snapshot: bool,
    expected: str,
) -> None:
    def edit(version: str) -> None:
        (tmp_path / "inner.py").write_text(f"VERSION = {version!r}\n")
        (tmp_path / "outer.py").write_text(f"import inner\n\nVERSION = {version!r}\n")

    def found(attempt: int, size: int) -> list[Any]:
        files = [tmp_path / f"here-{attempt}-{rank}" for rank in range(size)]
        run.wait(f"the ranks of attempt {attempt}", lambda: all(file.exists() for file in files))
        return [json.loads(file.read_text()) for file in files]

    def is_to_leave() -> bool:
        status = read_status(RunPaths(run.path))
        return status is not None and "nodes that it lacked are back" in status.phase

    edit("as it was")
    cluster = make_cluster(num_nodes=3, slurmd_timeout_s=300)
    run = start_run(cluster, (2, 3), code=CODE, snapshot=snapshot)
    assert found(1, 3) == [["as it was", "as it was", False]] * 3
    cluster.unplug("node2")
    assert found(2, 2) == [["as it was", "as it was", False]] * 2
    cluster.plug("node2")
    # So they are once all ranks of the larger group wait.
    wait_until(is_to_leave, "the larger group waits", timeout_s=120, process=run.process)
    edit("edited")
    (tmp_path / "go").touch()
    assert found(3, 3) == [[expected, expected, True]] * 3
    run.finish()
