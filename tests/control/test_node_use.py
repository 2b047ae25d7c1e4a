from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.control import node_use
from hpctrain.control.memory import MemoryCgroup, MemoryWatch
from hpctrain.control.node_use import NodeMeter
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_use, "_INTERVAL_S", 0.0)


@pytest.fixture
def watch() -> Iterator[MemoryWatch]:
    """A watch of this very process, which is at the other end of its own socket."""
    left, right = socket.socketpair()
    watch = MemoryWatch()
    watch.add("rank", left)
    watch.sample()
    yield watch
    left.close()
    right.close()


def test_a_node_without_ranks_has_nothing_to_say() -> None:
    assert NodeMeter(MemoryWatch()).read() == {}


def test_what_a_process_uses_is_measured(watch: MemoryWatch) -> None:
    meter = NodeMeter(watch)
    first = meter.read()
    assert first["cpu"] is None
    assert first["cpus"] == len(os.sched_getaffinity(0))
    assert 0 < first["memory"] < first["memory_limit"]

    def is_busy() -> bool:
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        return bool(meter.read()["cpu"])

    wait_until(is_busy, "a share of a core for what computes")


def test_the_answer_of_a_moment_ago_is_given_again(
    watch: MemoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = NodeMeter(watch)
    first = meter.read()
    monkeypatch.setattr(node_use, "_INTERVAL_S", 60.0)
    assert meter.read() is first


def test_a_job_in_a_cgroup_is_measured_with_all_its_processes(
    tmp_path: Path, watch: MemoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job_7"
    step = job / "step_0"
    step.mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 900000\n")
    for name, value in (("max", 400), ("current", 300)):
        (job / f"memory.{name}").write_text(f"{value * 2**20}\n")
    (job / "memory.stat").write_text(f"file {200 * 2**20}\nshmem {50 * 2**20}\n")
    group = MemoryCgroup([str(step), str(job), str(tmp_path)], version=2)
    monkeypatch.setattr(node_use.MemoryCgroup, "of", lambda pid: group)
    meter = NodeMeter(watch)
    # What the page cache holds can be dropped, but for what is in /dev/shm.
    assert (meter.read()["memory"], meter.read()["memory_limit"]) == (150, 400)
    begun = time.monotonic()
    (job / "cpu.stat").write_text("usage_usec 1001000000\n")
    cpu = meter.read()["cpu"]
    assert cpu > 1000 / (time.monotonic() - begun + 60)


def test_a_process_that_has_ended_gives_no_share_of_a_core(
    watch: MemoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The largest pid that there can be, man 5 proc: none has it here.
    monkeypatch.setattr(MemoryWatch, "pids", property(lambda self: [2**22]))
    use = NodeMeter(watch).read()
    assert (use["cpus"], use["cpu"]) == (0, None)
