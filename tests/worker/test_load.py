"""What holds a rank up, from files of the kernel as they are on different systems."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpctrain.worker.load import Counters, Load, explain_load, measure_load

MOUNTS = {
    1: "31 1 0:27 {root} {top} rw - cgroup cgroup rw,{option}\n",
    2: "31 1 0:27 {root} {top} rw - cgroup2 cgroup rw\n",
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def groups(root: Path, place: str, mount: str) -> None:
    write(root / "proc/7/cgroup", place)
    write(root / "proc/self/mountinfo", mount)


def measure(root: Path) -> Counters:
    return measure_load(root=f"{root}/", pid=7)


def test_version_2_counts_throttling_in_the_group_and_those_around_it(tmp_path: Path) -> None:
    groups(
        tmp_path,
        "0::/slurm/job_3\n",
        MOUNTS[2].format(root="/", top="/sys/fs/cgroup"),
    )
    write(tmp_path / "sys/fs/cgroup/slurm/job_3/cpu.stat", "usage_usec 9\nthrottled_usec 250000\n")
    write(tmp_path / "sys/fs/cgroup/slurm/cpu.stat", "usage_usec 9\nthrottled_usec 500000\n")
    assert measure(tmp_path).seconds["throttled"] == 0.75


def test_version_1_counts_in_nanoseconds_in_the_hierarchy_of_the_cpu(tmp_path: Path) -> None:
    groups(
        tmp_path,
        "4:memory:/other\n1:cpu,cpuacct:/job_3\n0::/\n",
        MOUNTS[1].format(root="/", top="/sys/fs/cgroup/memory", option="memory")
        + MOUNTS[1].format(root="/", top="/sys/fs/cgroup/cpu", option="cpu,cpuacct"),
    )
    write(tmp_path / "sys/fs/cgroup/cpu/job_3/cpu.stat", "nr_throttled 3\nthrottled_time 2000000\n")
    assert measure(tmp_path).seconds["throttled"] == pytest.approx(0.002)


def test_a_container_shows_only_its_own_group(tmp_path: Path) -> None:
    groups(
        tmp_path,
        "0::/../../elsewhere\n",
        MOUNTS[2].format(root="/inside", top="/sys/fs/cgroup"),
    )
    write(tmp_path / "sys/fs/cgroup/cpu.stat", "throttled_usec 1000000\n")
    assert measure(tmp_path).seconds["throttled"] == 1.0


def test_steal_and_pressure_are_counted_where_the_kernel_does(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    write(tmp_path / "proc/stat", f"cpu  1 2 3 4 5 6 7 {3 * ticks} 0 0\ncpu0 1 2 3\n")
    lines = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n"
    write(tmp_path / "proc/pressure/io", lines + lines.replace("some", "full"))
    write(tmp_path / "proc/pressure/memory", lines + "full avg10=0.00 total=500000\n")
    write(tmp_path / "proc/7/task/7/schedstat", "100 4000000000 3\n")
    seconds = measure(tmp_path).seconds
    assert seconds == {"steal": 3.0, "io": 2.0, "memory": 0.5, "task 7": 4.0}


@pytest.mark.parametrize("content", ["", "cpu\n", "some\n", "throttled_usec x\n", "\0\n"])
def test_files_that_are_not_as_expected_count_nothing(tmp_path: Path, content: str) -> None:
    for name in ("stat", "pressure/io", "pressure/memory", "7/task/7/schedstat"):
        write(tmp_path / "proc" / name, content)
    groups(tmp_path, "0::/\n", MOUNTS[2].format(root="/", top="/sys/fs/cgroup"))
    write(tmp_path / "sys/fs/cgroup/cpu.stat", content)
    assert measure(tmp_path).seconds == {}


@pytest.mark.parametrize("content", ["", "nonsense\n", "0::/\n", "\n\n"])
def test_groups_that_are_not_as_expected_count_nothing(tmp_path: Path, content: str) -> None:
    groups(tmp_path, content, "nonsense\n31 1 0:27 / - cgroup2\n")
    assert measure(tmp_path).seconds == {}


def test_this_process_can_be_measured() -> None:
    before = measure_load()
    load = Load.between(before, measure_load())
    assert Load.from_json(load.to_json()) == load
    assert before.at <= time.monotonic()


def test_a_load_is_a_share_of_the_time_between() -> None:
    before = Counters(at=10.0, seconds={"steal": 1.0, "io": 5.0, "task 1": 1.0, "task 2": 0.0})
    after = Counters(at=12.0, seconds={"steal": 2.0, "task 1": 1.5, "task 3": 9.0}, clock=0.5)
    assert Load.between(before, after) == Load(steal=0.5, waits_for_cpu=0.25, clock=0.5)


@pytest.mark.parametrize(
    ("load", "other", "said"),
    [
        (Load(), None, ()),
        (Load(throttled=0.5, waits_for_cpu=0.5), None, ("is throttled 50% of the time",)),
        (Load(waits_for_cpu=0.5), Load(waits_for_cpu=0.1), ("wait for a CPU 50%",)),
        # As much holds up the rank that is not slow.
        (Load(waits_for_cpu=0.5, io=0.9), Load(waits_for_cpu=0.4, io=0.8), ()),
        (Load(memory=0.2, io=0.3), None, ("memory pressure", "I/O pressure")),
        (Load(clock=0.4), Load(clock=0.95), ("CPU clock is at 40%",)),
        (Load(clock=0.4), Load(clock=0.42), ()),
        (Load(steal=0.04), None, ()),
    ],
)
def test_what_holds_up_a_slow_rank_more_than_another_is_said(
    load: Load, other: Load | None, said: tuple[str, ...]
) -> None:
    found = explain_load(load, other)
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))
