from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpctrain.control.memory import MemoryCgroup, MemoryWatch, free_bytes


class Machine:
    """A proc file system and a mounted hierarchy of cgroups, as files."""

    def __init__(self, directory: Path, *, groups: str, mount: str) -> None:
        self.proc, self.top = directory / "proc", directory / "cgroup"
        for pid in ("self", "7"):
            (self.proc / pid).mkdir(parents=True)
        (self.proc / "7" / "cgroup").write_text(groups)
        (self.proc / "self" / "mountinfo").write_text(
            f"29 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n{mount.format(top=self.top)}\n"
        )

    def write(self, group: str, **files: str) -> str:
        directory = self.top / group
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name.replace("__", ".")).write_text(content)
        return str(directory)

    def group(self) -> MemoryCgroup:
        group = MemoryCgroup.of(7, proc=str(self.proc))
        assert group is not None
        return group


def test_with_version_1_the_outermost_of_equal_limits_is_the_limit(tmp_path: Path):
    machine = Machine(
        tmp_path,
        groups="5:cpuset:/\n4:memory:/slurm/job_3/step_0/task_1\n0::/\n",
        mount="39 38 0:31 / {top} rw - cgroup cgroup rw,memory",
    )
    unlimited = "9223372036854771712\n"
    task = machine.write(
        "slurm/job_3/step_0/task_1",
        memory__limit_in_bytes=unlimited,
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    machine.write("slurm/job_3/step_0", memory__limit_in_bytes="314572800\n")
    job = machine.write(
        "slurm/job_3",
        memory__limit_in_bytes="314572800\n",
        memory__max_usage_in_bytes="314572000\n",
    )
    machine.write("slurm", memory__limit_in_bytes=unlimited)
    group = machine.group()
    assert group.lowest_limit() == (job, 314572800)
    assert group.peak(job) == 314572000
    assert group.kills(task) == 2
    assert group.directories[-1] == str(machine.top)


def test_with_version_2_limit_peak_and_kills_have_other_names(tmp_path: Path):
    machine = Machine(
        tmp_path,
        groups="0::/system.slice/slurmstepd.scope/job_3/step_0/user/task_0\n",
        mount="39 38 0:31 / {top} rw - cgroup2 cgroup2 rw,nsdelegate",
    )
    machine.write("system.slice/slurmstepd.scope/job_3/step_0/user/task_0", memory__max="max\n")
    step = machine.write(
        "system.slice/slurmstepd.scope/job_3/step_0",
        memory__max="1048576\n",
        memory__peak="1048576\n",
        memory__events="low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n",
    )
    group = machine.group()
    assert group.lowest_limit() == (step, 1048576)
    assert group.kills(step) == 1
    assert group.peak(step) == 1048576


def test_a_container_that_shows_a_part_of_the_hierarchy_is_understood(tmp_path: Path):
    machine = Machine(
        tmp_path,
        groups="4:memory:/docker/abc/job\n",
        mount="39 38 0:31 /docker/abc {top} rw - cgroup cgroup rw,memory",
    )
    limited = machine.write("job", memory__limit_in_bytes="4096\n")
    assert machine.group().lowest_limit() == (limited, 4096)


@pytest.mark.parametrize(
    ("groups", "mount"),
    [
        ("", "39 38 0:31 / {top} rw - cgroup2 cgroup2 rw"),
        ("4:memory:/a\n", "39 38 0:31 / {top} rw - cgroup cgroup rw,cpu"),
        ("4:memory:/elsewhere\n", "39 38 0:31 /docker/abc {top} rw - cgroup cgroup rw,memory"),
        ("0::/../elsewhere\n", "39 38 0:31 / {top} rw - cgroup2 cgroup2 rw"),
    ],
)
def test_what_is_not_shown_is_not_guessed(tmp_path: Path, groups: str, mount: str):
    machine = Machine(tmp_path, groups=groups, mount=mount)
    assert MemoryCgroup.of(7, proc=str(machine.proc)) is None


def test_a_process_that_ended_by_itself_was_not_killed():
    if MemoryCgroup.of(os.getpid()) is None:
        pytest.skip("no memory cgroup is shown here")
    mine, other = socket.socketpair()
    with mine, other:
        watch = MemoryWatch()
        watch.add("a", mine)
        watch.sample()
        told = watch.remove("a")
        assert watch.remove("a") is None
    assert told is not None
    assert told["kills"] == 0
    assert told["resident"] > 2**20


def test_a_process_that_is_set_aside_does_not_count_until_it_is_taken_back():
    mine, other = socket.socketpair()
    with mine, other:
        watch = MemoryWatch()
        watch.add("a", mine)
        watch.set_aside("a")
        watch.sample()
        assert (watch.pids, watch.resident_bytes) == ([], 0)
        # One that waits may end.
        assert watch.remove("a") is None
        watch.add("a", mine)
        watch.set_aside("a")
        watch.take_back("a")
        watch.add("b", mine)
        assert watch.pids == [os.getpid()] * 2
        if (told := watch.remove("a")) is not None and "sharing" in told:
            assert told["sharing"] == 2


def test_room_is_what_a_limit_leaves_and_the_page_cache_can_give_back(tmp_path: Path):
    machine = Machine(
        tmp_path, groups="0::/job_3\n", mount="39 38 0:31 / {top} rw - cgroup2 cgroup rw"
    )
    job = machine.write(
        "job_3",
        memory__max="1000\n",
        memory__current="900\n",
        memory__stat="anon 350\nfile 500\nshmem 150\n",
    )
    assert machine.group().room(job) == 1000 - 900 + 500 - 150
    assert machine.group().room(str(machine.top)) is None


def test_room_in_version_1_counts_the_groups_inside(tmp_path: Path):
    machine = Machine(
        tmp_path,
        groups="4:memory:/job_3\n",
        mount="39 38 0:31 / {top} rw - cgroup cgroup rw,memory",
    )
    job = machine.write(
        "job_3",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="900\n",
        memory__stat="cache 1\nshmem 0\ntotal_cache 500\ntotal_shmem 150\n",
    )
    assert machine.group().room(job) == 1000 - 900 + 500 - 150


def test_this_process_may_use_some_memory_and_not_more_than_there_is():
    assert 0 < free_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
