from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.health import (
    BAD_SKEW_S,
    DOUBTFUL_SKEW_S,
    LEAST_FREE_BYTES,
    Health,
    NodeHealth,
    bad_nodes,
    explain_bad_nodes,
    judge,
)
from hpctrain.execute.node_report import describe_node, examine_storage
from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths

GOOD = {
    "time": 0.0,
    "tmp": "/tmp",
    "tmp_free": 2**30,
    "shm_free": 2**30,
    "gpus": 0,
    "storage": "/run",
    "problem": "",
    "storage_free": 2**30,
}


def test_a_clock_that_is_set_during_a_start_is_no_fault_of_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    health = Health(num_nodes=1)
    now = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: now)
    health.take({**GOOD, "node": "node1", "time": now})
    assert health.reports["node1"]["skew"] == pytest.approx(0.0, abs=DOUBTFUL_SKEW_S)
    assert health.verdict() == NodeHealth(bad={}, doubtful={})


def test_nodes_that_have_all_they_need_are_good():
    verdict = judge({"node1": GOOD, "node2": GOOD}, gpus_on=lambda _: 4)
    assert not verdict.bad
    assert not verdict.doubtful


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"problem": "Read-only file system"}, "cannot write into /run: Read-only file system"),
        ({"storage_free": LEAST_FREE_BYTES - 1}, "/run has 16.0 MiB free"),
        ({"tmp_free": 0}, "/tmp has no room for another file"),
        ({"shm_free": 2**20}, "/dev/shm has 1.0 MiB free"),
        ({"skew": BAD_SKEW_S + 1}, "its clock is 301 s ahead of the executor's"),
        ({"skew": -BAD_SKEW_S - 1}, "its clock is 301 s behind the executor's"),
        ({"complaint": "it does not see the run directory"}, "it does not see the run directory"),
    ],
)
def test_a_node_that_lacks_something_is_bad(fault: dict[str, Any], reason: str):
    verdict = judge({"node1": GOOD, "node2": {**GOOD, **fault}})
    assert verdict.bad.keys() == {"node2"}
    assert reason in verdict.bad["node2"]


def test_a_storage_that_is_full_for_all_is_not_the_fault_of_a_node():
    full = {**GOOD, "storage_free": 0}
    verdict = judge({"node1": full, "node2": full})
    assert not verdict.bad
    assert verdict.doubtful.keys() == {"node1", "node2"}


def test_a_clock_that_is_off_by_seconds_is_told_and_does_no_harm():
    verdict = judge({"node1": {**GOOD, "skew": DOUBTFUL_SKEW_S + 1}, "node2": {**GOOD, "skew": 1}})
    assert not verdict.bad
    assert verdict.doubtful == {"node1": "its clock is 6 s ahead of the executor's"}


@pytest.mark.parametrize(("needed", "bad"), [(4, {"node2"}), (3, set()), (0, set())])
def test_a_node_with_fewer_gpus_than_others_and_than_its_ranks_need_is_bad(
    needed: int, bad: set[str]
):
    reports = {"node1": {**GOOD, "gpus": 4}, "node2": {**GOOD, "gpus": 3}}
    assert judge(reports, gpus_on=lambda _: needed).bad.keys() == bad


def test_a_node_with_fewer_ranks_than_others_needs_fewer_gpus():
    reports = {"node1": {**GOOD, "gpus": 4}, "node2": {**GOOD, "gpus": 1}}
    needed = {"node1": 3, "node2": 1}
    assert not judge(reports, gpus_on=needed.__getitem__).bad
    assert judge(reports, gpus_on=lambda _: 3).bad.keys() == {"node2"}


def test_gpus_without_device_files_are_left_to_the_backend():
    assert not judge({"node1": GOOD, "node2": GOOD}, gpus_on=lambda _: 4).bad


@pytest.mark.parametrize(("ahead", "skew"), [(1000, 1000), (0, 0), (-1000, -1000)])
def test_the_skew_of_a_clock_is_what_the_time_of_the_message_cannot_explain(ahead: int, skew: int):
    health = Health()
    health.take({"node": "node1", "time": time.time() + ahead})
    assert health.reports["node1"]["skew"] == pytest.approx(skew, abs=10)
    assert skew or health.reports["node1"]["skew"] == 0


def test_a_node_is_known_when_its_storage_has_answered_too():
    health = Health()
    health.take({"node": "node1", **describe_node("/tmp")})
    assert health.unanswered() == ["node1"]
    health.give_up(["node1"], after_s=30)
    assert health.verdict().bad == {
        "node1": "its storage does not answer, 30 s after its ranks have begun"
    }


def test_what_agents_print_tells_of_nodes_that_cannot_reach_the_executor():
    health = Health()
    health.read(
        "hpctrain: node2 cannot be used: it does not see the run directory /run: No such file\n"
        "srun: error: node2: task 1: Exited with exit code 1\n"
        "srun: error: node3: task 2: Exited with exit code 127\n"
    )
    assert health.verdict().bad == {
        "node2": "it does not see the run directory /run: No such file",
        "node3": "its agent exited with exit code 127",
    }
    assert not health.unanswered()


def test_the_message_names_node_reason_and_how_to_leave_it_out():
    bad = {"node2": "its /tmp is full", "node3": "it is gone"}
    verdict = NodeHealth(bad=bad, doubtful={})
    assert explain_bad_nodes(verdict, in_allocation=True) == (
        "node2 cannot be used: its /tmp is full; node3 cannot be used: it is gone. Tell the site; "
        "until it is repaired, leave it out with "
        "SlurmConfig(sbatch_args=['--exclude=node2,node3'])."
    )
    assert "sbatch" not in explain_bad_nodes(verdict, in_allocation=False)


def test_what_no_node_sees_is_not_the_fault_of_nodes():
    health = Health(num_nodes=2)
    health.read("hpctrain: node1 cannot be used: it does not see the working directory /tmp/me")
    assert health.verdict().bad.keys() == {"node1"}
    assert health.is_unanimous()
    assert not health.is_complete()
    health.read("hpctrain: node2 cannot be used: it does not see the working directory /tmp/me")
    verdict = health.verdict()
    assert health.is_complete()
    assert not verdict.bad
    assert not verdict.allows_start
    assert explain_bad_nodes(verdict, in_allocation=True).startswith(
        "no node of this job sees the working directory /tmp/me. Start the script from"
    )


def test_what_no_node_of_a_slice_sees_others_may_see():
    health = Health(num_nodes=1, is_slice=True)
    health.read("hpctrain: node1 cannot be used: it does not see the run directory /tmp/me")
    assert health.verdict().bad == {"node1": "it does not see the run directory /tmp/me"}
    assert not health.verdict().unseen


def test_a_single_node_with_a_full_tmp_is_bad_all_the_same():
    verdict = judge({"node1": {**GOOD, "tmp_free": 0}}, num_nodes=1)
    assert verdict.bad.keys() == {"node1"}


def test_the_ledger_remembers_the_bad_nodes_of_a_job(tmp_path: Path):
    paths = RunPaths(tmp_path)
    assert bad_nodes(paths, job_id="7") == {}
    append_event(paths, "node-bad", node="node2", reason="full", job_id="6")
    append_event(paths, "node-bad", node="node3", reason="gone", job_id="7")
    append_event(paths, "node-left-out", node="node4", reason="slow", job_id="7")
    append_event(paths, "node-slow", node="node5", reason="slow", job_id="7")
    assert bad_nodes(paths, job_id="7") == {"node3": "gone", "node4": "slow"}


def test_this_machine_can_be_used(tmp_path: Path):
    health = Health()
    health.take({"node": "here", **describe_node("/tmp")})
    health.take({"node": "here", **examine_storage(str(tmp_path), node="here")})
    assert not health.verdict().bad
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_run_directory_that_is_not_there_is_found(tmp_path: Path):
    report = examine_storage(str(tmp_path / "none"), node="here")
    assert report["problem"] == "No such file or directory"
    assert report["storage_free"] is None


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a file system of its own that has no room left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)])
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        (disk / "full").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_found(full_disk: Path):
    report = examine_storage(str(full_disk), node="here")
    assert report["problem"] == "", "what is full for all is not a fault of this node"
    assert report["storage_free"] == 0
    assert [path.name for path in full_disk.iterdir()] == ["full"]
