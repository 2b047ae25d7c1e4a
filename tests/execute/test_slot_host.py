"""What holds the step of a slot, started on this machine without one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpctrain.execute.process import process_start_time
from hpctrain.execute.slot_host import MODULE
from hpctrain.execute.slot_step import SlotProcess, SlotStep, make_ticket
from tests.plans import SETTINGS, make_plan
from tests.waiting import wait_until
from tests.worker.programs import is_alive

Start = Callable[[str], SlotProcess]


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[SlotStep]:
    with (
        open(tmp_path / "printed", "wb") as printed,
        subprocess.Popen(
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=printed
        ) as host,
    ):
        assert host.stdin is not None
        host.stdin.write(json.dumps({}).encode() + b"\n")
        host.stdin.flush()
        try:
            yield SlotStep(make_ticket(host.pid, "mark"), SETTINGS)
            host.stdin.close()
            assert host.wait(60) == 0
        finally:
            host.kill()


@pytest.fixture
def start(slot: SlotStep, tmp_path: Path) -> Iterator[Start]:
    """Start a script in the place of a launcher of ranks."""
    started = []

    def start(script: str) -> SlotProcess:
        process = slot.start_ranks(
            ["sh", "-c", script],
            ["a-rank"],
            placement=make_plan("local", num_workers=1).placement,
            environment=dict(os.environ),
            log=tmp_path / f"log{len(started)}",
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


# In a session of its own, and nobody's child.
LEAVES = "(setsid sleep 600 & echo $!)"


def ticks_since_boot() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def left_by(process: SlotProcess) -> int:
    return int(wait_until(lambda: process.last_lines().strip()))


def test_what_ranks_leave_behind_ends_before_the_next_ones_begin(
    slot: SlotStep, start: Start, tmp_path: Path
) -> None:
    """The agent of a run outlives its attempts, and is connected all the time."""
    agent = slot.start_agent(
        [sys.executable, "-m", "an-agent"], environment=dict(os.environ), log=tmp_path / "agent"
    )
    with closing(agent):
        first = start(LEAVES)
        left = left_by(first)
        assert first.wait(60) == 0
        assert is_alive(left)
        first.close()
        second = start(f"kill -0 {left} || echo gone")
        assert second.wait(60) == 0
        assert "gone" in second.last_lines()


def test_what_ranks_of_another_trial_have_started_stays(start: Start) -> None:
    first = start(f"{LEAVES}; sleep 600")
    of_first = left_by(first)
    begun = process_start_time(of_first)
    assert begun is not None
    # What has begun in the same tick of the clock is not known to be older.
    wait_until(lambda: ticks_since_boot() > begun)
    second = start(f"{LEAVES}; sleep 600")
    of_second = left_by(second)
    first.close()
    wait_until(lambda: not is_alive(of_first))
    assert is_alive(of_second)
    assert second.returncode() is None
    second.close()
    wait_until(lambda: not is_alive(of_second))


def test_what_ranks_have_left_behind_and_has_ended_is_no_zombie(start: Start) -> None:
    """A trial that starts many would reach the limit of processes."""
    ranks = start(f"{LEAVES}; sleep 600")
    orphan = left_by(ranks)
    os.kill(orphan, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{orphan}").exists())
    assert ranks.returncode() is None


def test_shared_memory_of_ranks_that_were_killed_in_mpi_init_is_removed(start: Start) -> None:
    """A segment of mpiexec's world: the executor that would have removed it is dead, too."""
    dead, used, older = (Path(f"/dev/shm/mpich_shm_{secrets.token_hex(4)}_0") for _ in range(3))
    older.write_bytes(bytes(4096))
    os.utime(older, (0.0, 0.0))
    try:
        ranks = start(f"truncate -s 4096 {dead} {used}; exec 3< {used}; echo $$; sleep 600")
        with open(f"/proc/{left_by(ranks)}/fd/3", "rb"):
            ranks.close()
            wait_until(lambda: not dead.exists())
            # Another removal has begun once that of the first trial is over.
            dead.write_bytes(bytes(4096))
            start("true").close()
            wait_until(lambda: not dead.exists())
            assert used.exists()
        assert older.exists()
    finally:
        for path in (dead, used, older):
            path.unlink(missing_ok=True)
