"""A rank is forked in the cgroup of another task only where that makes no difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpctrain.worker.task_cgroups import explain_cgroup

NUM_BYTES = 2**63 - 4096
# What tasks have where Slurm limits the job and the step alone.
FREE = {
    "memory": {"memory.limit_in_bytes": NUM_BYTES, "memory.memsw.limit_in_bytes": NUM_BYTES},
    "cpuset": {"cpuset.cpus": "0-3", "cpuset.mems": "0"},
    "devices": {"devices.list": "c 195:0 rwm\nc 195:1 rwm"},
    "cpu,cpuacct": {"cpu.cfs_quota_us": -1, "cpu.shares": 1024},
    "pids": {"pids.max": "max"},
    "blkio": {"blkio.throttle.read_bps_device": "", "blkio.weight_device": "8:0 500"},
    "freezer": {"freezer.state": "THAWED"},
    "name=systemd": {},
    "": {
        "memory.max": "max",
        "memory.high": "max",
        "memory.oom.group": 0,
        "memory.low": 4096,
        "cpu.max": "max 100000",
        "cpu.weight": 100,
        "pids.max": "max",
        "io.max": "8:0 rbps=max wbps=max riops=max wiops=max",
        "rdma.max": "mlx5_0 hca_handle=max hca_object=max",
        "cpuset.cpus": "",
        "cpuset.cpus.effective": "0-3",
        "cpuset.mems.effective": "0",
        "cgroup.max.depth": "max",
    },
}


class Tree:
    """Hierarchies as a node with task/cgroup has them: two tasks of a step."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.proc = place / "proc"
        (self.proc / "self").mkdir(parents=True)
        mounts = [
            f"{number} 1 0:{number} / {place}/{names} rw - cgroup cgroup rw,{names}"
            if names
            else f"{number} 1 0:{number} / {place}/unified rw - cgroup2 cgroup2 rw"
            for number, names in enumerate(FREE, start=20)
        ]
        (self.proc / "self" / "mountinfo").write_text("\n".join(mounts))
        for names, files in FREE.items():
            self.write(names, "", {"memory.max": 2**30, "memory.limit_in_bytes": 2**30})
            for task in range(2):
                self.write(names, f"task_{task}", files)

    def write(self, names: str, task: str, files: Mapping[str, object]) -> None:
        directory = self._place / (names or "unified") / "job_7" / "step_0" / task
        directory.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (directory / name).write_text(f"{value}\n")

    def explain(self, *only: str, **environment: str) -> str:
        lines = [
            "\n".join(
                f"{number}:{names}:/job_7/step_0/task_{task if names in (only or FREE) else 0}"
                for number, names in enumerate(FREE)
            )
            for task in (1, 0)
        ]
        return explain_cgroup(*lines, environment=environment, proc=str(self.proc))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_tasks_whose_cgroups_only_count_share_one(tree: Tree) -> None:
    assert tree.explain() == ""
    assert tree.explain(*(names for names in FREE if names), CUDA_VISIBLE_DEVICES="1") == ""


@pytest.mark.parametrize("task", ["task_0", "task_1"])
@pytest.mark.parametrize(
    ("names", "file", "value"),
    [
        ("", "memory.max", 2**30),
        ("", "memory.high", 2**30),
        ("", "memory.oom.group", 1),
        ("", "cpu.max", "50000 100000"),
        ("", "pids.max", 100),
        ("", "io.max", "8:0 rbps=1048576 wbps=max riops=max wiops=max"),
        ("", "rdma.max", "mlx5_0 hca_handle=2 hca_object=max"),
        ("", "hugetlb.2MB.max", 0),
        ("", "cpuset.cpus.effective", "0-1"),
        ("", "cpuset.mems.effective", "1"),
        ("memory", "memory.limit_in_bytes", 2**30),
        ("memory", "memory.memsw.limit_in_bytes", 2**30),
        ("cpuset", "cpuset.cpus", "0-1"),
        ("cpuset", "cpuset.mems", "1"),
        ("devices", "devices.list", "c 195:0 rwm"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", 50000),
        ("pids", "pids.max", 100),
        ("blkio", "blkio.throttle.read_bps_device", "8:0 1048576"),
    ],
)
def test_a_limit_of_either_task_is_named(
    tree: Tree, names: str, file: str, value: object, task: str
) -> None:
    tree.write(names, task, {file: value})
    reason = tree.explain()
    assert reason.startswith(f"{file} is ")
    assert str(value) in reason
    assert f"/{task}" in reason


def test_what_cannot_be_seen_is_a_reason(tree: Tree) -> None:
    assert tree.explain("", CUDA_VISIBLE_DEVICES="0") == (
        "whether they limit GPUs cannot be seen in version 2 of cgroups"
    )
    tree.write("devices", "task_0", {"devices.list": ""})
    tree.write("devices", "task_1", {"devices.list": ""})
    assert tree.explain("devices").endswith("devices.list cannot be read")
    (tree.proc / "self" / "mountinfo").write_text("")
    assert tree.explain("memory") == "what they limit cannot be seen here"
    assert tree.explain("freezer") == ""
    assert explain_cgroup("0::/a", "1:memory:/a", environment={}).startswith("only one of them")
    assert explain_cgroup("damaged", "0::/a", environment={}).startswith("they cannot be read")
