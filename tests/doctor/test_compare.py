"""Compute nodes against the login node, and the worlds that launchers made."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpctrain.doctor.compare import check_login, check_machines, check_shared, check_worlds
from hpctrain.doctor.finding import Finding, Level

LOGIN: dict[str, Any] = {
    "host": "login1",
    "python": "3.11.7",
    "versions": {"hpctrain": "0.1.0", "torch": "2.13.0"},
    "imports": {},
    "storage": {
        "path": "/scratch/me/runs",
        "error": None,
        "kind": "lustre",
        "files": [".doctor-login-1", ".doctor-login1-2"],
        "free_bytes": 2**40,
        "free_files": 1000,
        "token": ".doctor-login-1",
    },
    "limits": {
        "open files": [65536, 65536],
        "locked memory": [-1, -1],
        "processes": [4096, 127000],
        "address space": [-1, -1],
    },
    "shm": {"error": None, "free_bytes": 2**34, "total_bytes": 2**35},
    "interfaces": {"eth0": "10.0.0.1", "ib0": "10.1.0.1", "lo": "127.0.0.1"},
    "port": None,
    "infiniband": ["mlx5_0"],
}


def node(name: str) -> dict[str, Any]:
    report = copy.deepcopy(LOGIN)
    report |= {"host": name, "skew_s": 0.0}
    report["imports"] = {"torch": {"error": None, "seconds": 2.0}}
    return report


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def test_equal_nodes_have_nothing_but_good_findings():
    assert bad(check_machines([node("n1"), node("n2")], login=LOGIN)) == []
    assert check_login(LOGIN).level is Level.OK


DIFFERENT: dict[str, tuple[list[str], Any, Level, str]] = {
    "storage not there": (
        ["storage", "error"],
        "No such file or directory",
        Level.ERROR,
        "/scratch/me/runs cannot be written on n2: No such file",
    ),
    "another directory": (["storage", "files"], [], Level.ERROR, "on n2 is another directory"),
    "disk full": (["storage", "free_bytes"], 2**20, Level.WARNING, "0.00098 GiB left"),
    "no inodes": (["storage", "free_files"], 0, Level.WARNING, "has no inodes left"),
    "another Python": (["python"], "3.9.2", Level.ERROR, "Python is 3.9.2 on n2 and 3.11.7 here"),
    "another torch": (
        ["versions", "torch"],
        "2.4.0",
        Level.ERROR,
        "torch is 2.4.0 on n2 and 2.13.0 here",
    ),
    "clock ahead": (["skew_s"], 90.0, Level.WARNING, "clock of n2 is 90.0 s ahead"),
    "clock behind": (["skew_s"], -90.0, Level.WARNING, "clock of n2 is 90.0 s behind"),
    "no torch": (
        ["imports", "torch", "error"],
        "ModuleNotFoundError: No module named 'torch'",
        Level.ERROR,
        "torch cannot be imported on n2: ModuleNotFoundError",
    ),
    "slow import": (["imports", "torch", "seconds"], 95.0, Level.WARNING, "takes 95 s"),
    "/dev/shm full": (["shm", "free_bytes"], 2**20, Level.WARNING, "1 MiB are free in /dev/shm"),
    "few files": (["limits", "open files"], [256, 256], Level.WARNING, "256 open files on n2"),
    "no locked memory": (
        ["limits", "locked memory"],
        [65536, 65536],
        Level.WARNING,
        "lock 64 KiB of memory on n2",
    ),
    "few processes": (
        ["limits", "processes"],
        [512, 127000],
        Level.WARNING,
        "a user may have 512 processes and threads on n2",
    ),
    "little address space": (
        ["limits", "address space"],
        [2**34, -1],
        Level.WARNING,
        "16 GiB of address space on n2",
    ),
    "no network": (["interfaces"], {"lo": "127.0.0.1"}, Level.ERROR, "no address but loopback"),
    "no port": (["port"], "Permission denied", Level.ERROR, "no port can be bound on n2"),
}


@pytest.mark.parametrize(
    ("place", "value", "level", "what"), DIFFERENT.values(), ids=list(DIFFERENT)
)
def test_what_one_node_lacks_is_found_and_says_which_node(
    place: list[str], value: Any, level: Level, what: str
):
    other = node("n2")
    target = other
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    found = bad(check_machines([node("n1"), other], login=LOGIN))
    assert [finding.level for finding in found] == [level], found
    assert what in found[0].what
    assert found[0].why
    assert found[0].step


def test_a_clock_that_did_not_answer_is_not_called_right():
    silent = node("n2") | {"skew_s": None}
    (found,) = bad(check_machines([node("n1"), silent], login=LOGIN))
    assert (found.level, found.what) == (Level.NOTE, "the clock of n2 did not answer")


def test_each_limit_that_is_too_low_is_named_with_all_its_nodes():
    nodes = [node(name) for name in ("n1", "n2", "n3")]
    for report in nodes[1:]:
        report["limits"] = {name: [100, 100] for name in report["limits"]}
    found = bad(check_machines(nodes, login=LOGIN))
    assert [finding.check for finding in found] == ["limits"] * 4
    assert all(finding.what.endswith(" on n[2-3]") for finding in found)


def test_limits_that_are_not_set_are_fine():
    report = node("n1")
    report["limits"] = {name: [-1, -1] for name in report["limits"]}
    (found,) = [f for f in check_machines([report], login=LOGIN) if f.check == "limits"]
    assert (found.level, found.what) == (Level.OK, "open files are not limited")


def test_locked_memory_does_not_matter_without_infiniband():
    report = node("n1") | {"infiniband": []}
    report["limits"]["locked memory"] = [65536, 65536]
    assert bad(check_machines([report], login=LOGIN)) == []


def test_a_package_that_is_missing_on_one_side_is_a_difference():
    other = node("n2")
    del other["versions"]["torch"]
    (found,) = bad(check_machines([node("n1"), other], login=LOGIN))
    assert found.what == "torch is missing on n2 and 2.13.0 here"


def test_storage_of_one_machine_is_a_warning_where_no_node_was_asked():
    login = copy.deepcopy(LOGIN)
    assert check_shared(login) == []
    login["storage"]["kind"] = "tmpfs"
    (found,) = check_shared(login)
    assert found.level is Level.WARNING
    assert "is on tmpfs here" in found.what


def world(*sizes: int, output: str = "") -> dict[str, Any]:
    ranks = [{"size": size, "rank": n, "library": "MPICH 5.0"} for n, size in enumerate(sizes)]
    return {"wanted": 2, "ranks": ranks, "output": output}


def test_one_world_is_told_from_singletons_and_from_nothing():
    worlds = {
        "srun --mpi=pmi2": world(2, 2),
        "srun --mpi=pmix": world(1, 1),
        "mpiexec": world(output="mpiexec: no hosts\n"),
    }
    found = check_worlds(worlds, chosen="srun --mpi=pmi2")
    assert [finding.level for finding in found] == [Level.OK, Level.NOTE, Level.NOTE]
    assert "one world of 2 ranks, MPICH 5.0" in found[0].what
    assert "2 worlds of 1 in place of one" in found[1].what
    assert "no hosts" in found[2].what


def test_the_launcher_of_a_run_that_makes_singletons_is_an_error_with_one_that_works():
    worlds = {"srun --mpi=pmix": world(1, 1), "srun --mpi=pmi2": world(2, 2)}
    (found,) = bad(check_worlds(worlds, chosen="srun --mpi=pmix"))[:1]
    assert found.level is Level.ERROR
    assert found.step == "SlurmConfig(mpi='pmi2')"
