"""A node that cannot be used is found before the ranks train, named, and written down."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpctrain.execute.health import bad_nodes
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.timeouts import AGENT_OF_NODE_S

pytestmark = pytest.mark.slurm

SCRIPT = """
import sys
from hpctrain import (
    DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig,
)

def train():
    pass

if __name__ == "__main__":
    try:
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(
                num_workers=2,
                slurm=SlurmConfig(nodes=2, sbatch_args=["--nodelist=node1,node2"]),
            ),
            run_config=RunConfig(storage_path=sys.argv[1], name="run", verbose=0),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    directory = tmp_path / "storage"
    directory.mkdir()
    return directory


@pytest.fixture
def mount_on_node2(virtual_slurm: VirtualCluster) -> Iterator[Callable[..., None]]:
    if virtual_slurm.spec.mode == "flat":
        pytest.skip("the nodes of a flat cluster have no file systems of their own")

    def run(*argv: str) -> None:
        done = virtual_slurm.run_on("node2", argv)
        assert done.returncode == 0, done.stderr

    with ExitStack() as repairs:

        def mount(*arguments: str) -> None:
            run("mount", *arguments)
            repairs.callback(run, "umount", arguments[-1])

        yield mount


def fit(
    cluster: VirtualCluster, storage: Path, tmp_path: Path, *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, str(script), str(storage)],
        env={**os.environ, **cluster.environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        # No rank gives up waiting for its agent first.
        timeout=AGENT_OF_NODE_S,
    )


def check(done: subprocess.CompletedProcess[str], storage: Path, reason: str) -> None:
    assert done.returncode == 4, done.stdout + done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"LaunchError: node2 cannot be used: {reason}")
    assert "leave it out with SlurmConfig(sbatch_args=['--exclude=node2'])" in first
    paths = RunPaths(storage / "run")
    (event,) = [event for event in read_events(paths) if event["event"] == "node-bad"]
    assert event["node"] == "node2"
    assert bad_nodes(paths, job_id=event["job_id"])["node2"].startswith(reason)
    assert not list((storage / "run").glob(".health*"))


def test_a_node_that_does_not_see_the_storage(
    virtual_slurm: VirtualCluster,
    mount_on_node2: Callable[..., None],
    storage: Path,
    tmp_path: Path,
) -> None:
    mount_on_node2("-t", "tmpfs", "tmpfs", str(storage))
    done = fit(virtual_slurm, storage, tmp_path)
    check(done, storage, f"it does not see the run directory {storage}/run: No such file or")


def test_a_node_whose_storage_is_read_only(
    virtual_slurm: VirtualCluster,
    mount_on_node2: Callable[..., None],
    storage: Path,
    tmp_path: Path,
) -> None:
    mount_on_node2("--bind", "-o", "ro", str(storage), str(storage))
    done = fit(virtual_slurm, storage, tmp_path)
    check(done, storage, f"it cannot write into {storage}/run: Read-only file system")


def test_a_node_whose_shared_memory_is_full(
    virtual_slurm: VirtualCluster,
    mount_on_node2: Callable[..., None],
    storage: Path,
    tmp_path: Path,
) -> None:
    mount_on_node2("-t", "tmpfs", "-o", "size=8m", "tmpfs", "/dev/shm")
    done = fit(virtual_slurm, storage, tmp_path)
    check(done, storage, "/dev/shm has 8.0 MiB free")


def test_a_node_that_does_not_see_the_working_directory(
    virtual_slurm: VirtualCluster,
    mount_on_node2: Callable[..., None],
    storage: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "work" / "here").mkdir(parents=True)
    mount_on_node2("-t", "tmpfs", "tmpfs", str(tmp_path / "work"))
    done = fit(virtual_slurm, storage, tmp_path, cwd=tmp_path / "work" / "here")
    check(done, storage, f"it does not see the working directory {tmp_path}/work/here")


def test_nodes_that_are_good_leave_nothing_in_ledger_and_run_directory(
    virtual_slurm: VirtualCluster, storage: Path, tmp_path: Path
) -> None:
    done = fit(virtual_slurm, storage, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    events = {event["event"] for event in read_events(RunPaths(storage / "run"))}
    assert not {"node-bad", "node-doubtful"} & events
    assert not list((storage / "run").glob(".health*"))
