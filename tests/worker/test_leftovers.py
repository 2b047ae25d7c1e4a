"""What ranks that are killed leave on a node, and who may remove it."""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctrain.worker.leftovers import (
    remove_dead_segments,
    remove_dead_segments_of_step,
    remove_dead_segments_since,
    segment_name,
    unlink_mapped_segments,
)

SHM = Path("/dev/shm")
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
LONG_AGO_S = 3600.0
NOBODY = 65534
Leave = Callable[..., Path]

HOLD = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] == "mapped":
    memory = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
print("ready", flush=True)
sys.stdin.read()
"""

START = """
import os, sys
from hpctrain.worker.leftovers import remove_dead_segments_of_step
path = sys.argv[1]
for round in sys.stdin:
    remove_dead_segments_of_step(step_age_s=100.0)
    # As MPI_Init does it: the first makes it, the others open what is there.
    print(os.fstat(os.open(path, os.O_CREAT | os.O_RDWR)).st_ino, flush=True)
"""


@pytest.fixture
def job_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """A job of this process that nobody else has."""
    number = str(10**9 + secrets.randbelow(10**9))
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    return number


@pytest.fixture
def leave(job_id: str) -> Iterator[Leave]:
    """Leave a segment of a world behind."""
    left: list[Path] = []

    def leave(world: str, *, age_s: float = LONG_AGO_S, uid: int | None = None) -> Path:
        path = SHM / segment_name(world, node=0)
        path.write_bytes(bytes(4096))
        left.append(path)
        written = path.stat().st_mtime - age_s
        os.utime(path, (written, written))
        if uid is not None:
            os.chown(path, uid, uid)
        return path

    yield leave
    for path in left:
        path.unlink(missing_ok=True)


@pytest.fixture
def hold() -> Iterator[Callable[[Path, str], None]]:
    """Let another process have a segment mapped, or open."""
    holders: list[subprocess.Popen[str]] = []

    def hold(path: Path, how: str) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"

    yield hold
    for holder in holders:
        holder.communicate()


def test_of_its_own_job_the_dead_segments_of_every_step_are_removed(
    job_id: str, leave: Leave
) -> None:
    left = [leave(f"{job_id}.{step}", age_s=0.0) for step in (0, 1, 417)]
    remove_dead_segments(job_id)
    assert not any(path.exists() for path in left)


def test_the_segments_of_another_job_are_left_alone(job_id: str, leave: Leave) -> None:
    other = leave(f"{job_id}0.1")
    remove_dead_segments(job_id)
    remove_dead_segments_of_step(step_age_s=1.0)
    assert other.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_segments_of_another_user_are_left_alone(job_id: str, leave: Leave) -> None:
    other = leave(f"{job_id}.1", uid=NOBODY)
    remove_dead_segments(job_id)
    remove_dead_segments_of_step(step_age_s=1.0)
    assert other.exists()


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_what_a_living_process_uses_is_left_alone(
    job_id: str, leave: Leave, hold: Callable[[Path, str], None], how: str
) -> None:
    used = leave(f"{job_id}.1")
    hold(used, how)
    remove_dead_segments(job_id)
    assert used.exists()


def test_of_any_world_the_dead_segments_of_a_time_are_removed(
    job_id: str, leave: Leave, hold: Callable[[Path, str], None]
) -> None:
    dead, used, older = leave("kvs_1", age_s=1.0), leave("kvs_2", age_s=1.0), leave("kvs_3")
    hold(used, "mapped")
    remove_dead_segments_since(dead.stat().st_mtime - 1.0)
    assert [path.exists() for path in (dead, used, older)] == [False, True, True]


def test_a_rank_removes_what_is_older_than_its_step(job_id: str, leave: Leave) -> None:
    old, of_other_step = leave(f"{job_id}.1", age_s=100.0), leave(f"{job_id}.2", age_s=100.0)
    remove_dead_segments_of_step(step_age_s=50.0)
    assert not old.exists()
    assert of_other_step.exists()


def test_a_rank_leaves_what_a_quicker_one_of_its_step_has_made(job_id: str, leave: Leave) -> None:
    made = leave(f"{job_id}.1", age_s=49.0)
    remove_dead_segments_of_step(step_age_s=50.0)
    assert made.exists()


def test_a_rank_leaves_what_is_old_but_used(
    job_id: str, leave: Leave, hold: Callable[[Path, str], None]
) -> None:
    used = leave(f"{job_id}.1")
    hold(used, "mapped")
    remove_dead_segments_of_step(step_age_s=50.0)
    assert used.exists()


def test_a_rank_that_cannot_see_when_its_step_began_removes_nothing(
    job_id: str, leave: Leave
) -> None:
    # Here is no slurmstepd among the parents.
    left = leave(f"{job_id}.1")
    remove_dead_segments_of_step()
    assert left.exists()


def test_ranks_that_start_together_all_open_the_same_new_segment(job_id: str, leave: Leave) -> None:
    path = leave(f"{job_id}.1")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(4)
    ]
    for _ in range(20):
        old = leave(f"{job_id}.1").stat().st_ino
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("start\n")
        opened = {int(rank.stdout.readline()) for rank in ranks if rank.stdout is not None}
        assert len(opened) == 1
        assert opened != {old}
        path.unlink()
    for rank in ranks:
        rank.communicate()
        assert rank.returncode == 0


def test_a_segment_stays_with_the_processes_that_have_it_mapped(job_id: str, leave: Leave) -> None:
    path, other = leave(f"{job_id}.1"), leave(f"{job_id}.2")
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        unlink_mapped_segments()
        assert not path.exists()
        memory[:4] = b"rank"
        assert memory[:4] == b"rank"
    assert other.exists()


RANKS = """
import os
from hpctrain.worker.bootstrap import join_world
from hpctrain.worker.leftovers import _mapped_segments
world, comm = join_world(attempt=1, fewest=3, most=3)
maps = open("/proc/self/maps").read()
assert "/dev/shm/mpich_shm_" in maps, "not this MPI, or it has another way by now"
assert not [path for path in _mapped_segments("self") if os.path.exists(path)]
from mpi4py import MPI
# Everything that opens shared memory later has names of its own.
half = comm.Split(comm.rank % 2)
large = comm.allgather(bytes(10**6))
window = MPI.Win.Allocate_shared(4096, comm=comm)
window.Fence(); window.Fence()
assert half.allreduce(1) == [2, 1][comm.rank % 2] and len(large) == 3
window.Free()
MPI.Finalize()
print("done", flush=True)
"""


@pytest.mark.mpi
def test_ranks_that_have_joined_have_no_name_for_their_memory_and_need_none() -> None:
    done = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, "-c", RANKS],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.count("done") == 3, done.stderr
