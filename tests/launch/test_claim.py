from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.launch.claim import claimed, find_claim, is_claimed, release_claim
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm import site_facts

HOLD = """
import sys, time
from pathlib import Path
from hpctrain.launch.claim import claimed
from hpctrain.rundir.paths import RunPaths

with claimed(RunPaths(Path(sys.argv[1]))):
    print("holds", flush=True)
    time.sleep(600)
"""

# Adds one to a number in a file many times; without exclusion additions get lost.
COUNT = """
import sys
from pathlib import Path
from hpctrain.launch.claim import claimed
from hpctrain.rundir.paths import RunPaths

paths, times = RunPaths(Path(sys.argv[1])), int(sys.argv[2])
number = paths.root / "number"
for _ in range(times):
    with claimed(paths):
        number.write_text(str(int(number.read_text()) + 1))
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


def claims(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.root.iterdir())


@contextlib.contextmanager
def holder_of(paths: RunPaths) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLD, str(paths.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        yield holder
        holder.kill()


def complaint_of_waiting(paths: RunPaths) -> str:
    with pytest.raises(LaunchError) as caught, claimed(paths, patience_s=0.2):
        pass
    return str(caught.value)


def write_claim(paths: RunPaths, **owner: object) -> None:
    """Write by hand what a process of another host would have left."""
    paths.claim(4).mkdir(parents=True)
    content = {"host": "elsewhere", "pid": 12, "start": 34, "time": 1e9, "token": "t", **owner}
    (paths.claim(4) / "owner").write_text(json.dumps(content))


def test_processes_hold_it_one_after_the_other_and_leave_one_directory(paths: RunPaths) -> None:
    paths.root.mkdir()
    (paths.root / "number").write_text("0")
    processes = [
        subprocess.Popen([sys.executable, "-c", COUNT, str(paths.root), "25"]) for _ in range(4)
    ]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert (paths.root / "number").read_text() == "100"
    assert claims(paths) == [".claim-100", "number"]


def test_threads_of_one_process_exclude_each_other(paths: RunPaths) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with claimed(paths):
            inside += 1
            most = max(most, inside)
            time.sleep(0.002)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1


def test_a_holder_that_was_killed_does_not_hold_it(paths: RunPaths) -> None:
    done = threading.Event()

    def take() -> None:
        with claimed(paths, patience_s=60):
            done.set()

    with holder_of(paths) as holder:
        assert f"process {holder.pid} on {os.uname().nodename} has" in complaint_of_waiting(paths)
        waiting = threading.Thread(target=take)
        waiting.start()
        assert not done.is_set()
        holder.kill()
        holder.wait(10)
        waiting.join(30)
    assert done.is_set()


def test_what_a_process_left_that_was_killed_before_it_held_it_is_removed(paths: RunPaths) -> None:
    for name in (".claiming-1", ".claiming-2"):
        (paths.root / name).mkdir(parents=True)
    (paths.root / ".claiming-2" / "owner").write_text("{")
    with claimed(paths):
        assert claims(paths) == [".claim-1"]


def test_an_error_inside_lets_it_go(paths: RunPaths) -> None:
    with pytest.raises(ValueError, match="inside"), claimed(paths):
        raise ValueError("inside")
    with claimed(paths, patience_s=0):
        pass


def test_a_process_of_another_host_is_waited_for_and_then_named(paths: RunPaths) -> None:
    write_claim(paths)
    assert "process 12 on elsewhere has been starting run 'run'" in complaint_of_waiting(paths)
    assert claims(paths) == [".claim-4"], "what was prepared is tidied up"
    (paths.claim(4) / "owner").write_text("")  # released
    with claimed(paths, patience_s=0):
        assert claims(paths) == [".claim-5"]


def test_a_late_claim_under_a_number_that_was_tidied_up_does_not_count(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two others claim and let go between this process's look and its rename."""
    from hpctrain.launch import claim

    rename = os.rename

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        for _ in range(2):
            with claimed(paths):
                pass
        held.enter_context(claimed(paths))
        rename(source, target)

    monkeypatch.setattr(claim.os, "rename", overtaken)
    with contextlib.ExitStack() as held:
        assert "did not get further" in complaint_of_waiting(paths)
    assert claims(paths) == [".claim-3"]


def test_a_claim_counts_while_its_process_lives(paths: RunPaths):
    assert not is_claimed(paths)
    with holder_of(paths) as holder:
        assert is_claimed(paths)
        holder.kill()
        holder.wait()
        assert not is_claimed(paths)
    with claimed(paths):
        assert is_claimed(paths)
    assert not is_claimed(paths)


def test_a_claim_of_another_host_is_believed_whatever_its_clock_says(paths: RunPaths):
    with claimed(paths):
        (name,) = claims(paths)
        owner = paths.root / name / "owner"
        content = json.loads(owner.read_bytes())
        owner.write_text(json.dumps({**content, "host": "elsewhere", "time": 1.0}))
        assert is_claimed(paths)


@pytest.mark.parametrize(
    ("owner", "here", "is_left"),
    [
        ({"job_id": "7"}, {"SLURM_JOB_ID": "9"}, True),
        ({"job_id": "7"}, {}, True),
        ({"job_id": "8"}, {"SLURM_JOB_ID": "9"}, False),
        ({"job_id": "9"}, {"SLURM_JOB_ID": "9"}, False),
        ({"job_id": "9"}, {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}, True),
        ({"job_id": "9", "restarts": 1}, {"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"}, False),
        ({"job_id": "7", "cluster": "other"}, {}, False),
        ({"job_id": None}, {}, False),
        ({"job_id": "--all"}, {}, False),
        ({"job_id": "7", "restarts": "many"}, {}, False),
    ],
)
def test_a_claim_of_a_job_that_is_over_is_released(
    paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    owner: dict[str, object],
    here: dict[str, str],
    is_left: bool,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "this")
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    with claimed(paths):
        (name,) = claims(paths)
        file = paths.root / name / "owner"
        content = {**json.loads(file.read_bytes()), "host": "elsewhere", "cluster": "this"}
        file.write_text(json.dumps({**content, "restarts": 0, **owner}))
        claim = find_claim(paths)
        assert claim is not None
        assert claim.was_left_by_job({"8": True, "9": True}.get) == is_left
        release_claim(paths, replace(claim, owner=b"of another process"))
        assert is_claimed(paths)
        release_claim(paths, claim)
        assert not is_claimed(paths)


@pytest.mark.parametrize(("cluster", "is_left"), [("this", True), ("other", False), (None, True)])
def test_outside_of_jobs_slurm_says_which_cluster_this_is(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, cluster: str | None, is_left: bool
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(site_facts, "ask_slurm", lambda argv: "ClusterName = this\n")
    site_facts.find_cluster.cache_clear()
    with claimed(paths):
        (name,) = claims(paths)
        file = paths.root / name / "owner"
        of_job = {"host": "elsewhere", "job_id": "7", "restarts": 0, "cluster": cluster}
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **of_job}))
        claim = find_claim(paths)
        assert claim is not None
        assert claim.was_left_by_job(lambda job_id: None) == is_left
    site_facts.find_cluster.cache_clear()


def test_a_claim_of_this_host_is_held_as_long_as_its_process_lives(paths: RunPaths) -> None:
    with claimed(paths):
        claim = find_claim(paths)
        assert claim is not None
        assert not claim.was_left_by_job(lambda job_id: None)


def test_the_claim_of_a_run_is_not_held_in_a_copy_of_its_directory(
    paths: RunPaths, tmp_path: Path
) -> None:
    with claimed(paths):
        copy = tmp_path / "copy"
        shutil.copytree(paths.root, copy)
        assert is_claimed(paths)
        assert not is_claimed(RunPaths(copy))
        with claimed(RunPaths(copy), patience_s=0):
            assert is_claimed(RunPaths(copy))
        assert is_claimed(paths)
        # Moved, it is the same directory.
        moved = tmp_path / "moved"
        paths.root.rename(moved)
        assert is_claimed(RunPaths(moved))
        moved.rename(paths.root)
