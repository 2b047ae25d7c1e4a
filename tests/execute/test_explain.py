from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpctrain.control.wire import Frame
from hpctrain.errors import WorkerError
from hpctrain.execute.explain import explain_failure, first_failure
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart
from hpctrain.worker.failure import RankFailure
from tests.plans import SETTINGS

# Recorded with MPICH 5.0; the ranks have the pids 100, 101, 102, 103.
HYDRA_KILLED = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 101 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
HYDRA_EXITED = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 101 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
"""
# Recorded with Open MPI 4.1.4.
OPENMPI_KILLED = """
mpiexec noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
"""
OPENMPI_EXITED = """
mpiexec detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[26528,1],1]
  Exit code:    7
"""
# Recorded with Open MPI 5.0.7; 6.0 has an empty line more.
PRTERUN_KILLED = """
prterun noticed that process rank 1 with PID 10141 on node vm exited on
signal 9 (Killed).
"""
PRTERUN_EXITED = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-25454@1,1]
   Exit code:    7
"""
# In the words of Slurm 22.05.
SRUN_EXITED = """
srun: error: n2: task 1: Exited with exit code 7
srun: launch/slurm: _step_signal: Terminating StepId=12.0
slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***
srun: error: n1: task 0: Terminated
srun: error: n2: tasks 2-3: Terminated
"""
SRUN_KILLED = "srun: error: n1: tasks 0-2: Killed\nsrun: Force Terminated StepId=12.0\n"
SRUN_CRASHED = "srun: error: n1: task 1: Segmentation fault (core dumped)\n"
SRUN_OOM = """
slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed by the cgroup out-of-memory handler.
srun: error: n1: task 1: Out Of Memory
"""  # noqa: E501
# What cgroups tell of a rank: see MemoryWatch.remove.
KILLED = {
    "kills": 1,
    "group": "/sys/fs/cgroup/memory/slurm/uid_0/job_12",
    "limit": 300 * 2**20,
    "peak": 300 * 2**20,
    "sharing": 2,
    "resident": 250 * 2**20,
    "age_s": 0.34,
}


@pytest.fixture
def tracker() -> AttemptTracker:
    return AttemptTracker(world_size=4, first_report=0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def fail(tracker: AttemptTracker, rank: int, message: str, **details: Any) -> None:
    failure = RankFailure(
        **{
            "rank": rank,
            "hostname": "n9",
            "pid": 100 + rank,
            "report": 14,
            "phase": "training",
            "type": "RuntimeError",
            "message": message,
            "traceback": f'  File "train.py", line 3\nRuntimeError: {message}\n',
            "time": 0.0,
            **details,
        }
    )
    body = json.dumps(failure.to_json()).encode()
    tracker.feed(Frame({"op": "failed", "rank": rank}, body, b""))


def lose(tracker: AttemptTracker, *ranks: int, agent: bool = False, memory: Any = None) -> None:
    for rank in ranks:
        header = {"op": "lost", "rank": rank, "agent": agent, "memory": memory}
        tracker.feed(Frame(header, b"", b""))


def explain(
    tracker: AttemptTracker,
    paths: RunPaths,
    output: str = "",
    checkpoint: Path | None = None,
    death: tuple[int, int] | None = None,
) -> WorkerError:
    return explain_failure(
        tracker,
        workers=[
            WorkerMetadata(
                rank=r,
                hostname=f"n{r // 2}",
                pid=100 + r,
                tmp="/tmp",
                tmp_owner="",
                node_rank=0,
                local_rank=r,
            )
            for r in range(4)
        ],
        paths=paths,
        attempt=1,
        checkpoint=checkpoint,
        launcher_output=output,
        death=death,
    )


def test_who_waited_for_a_commit_in_vain_is_told_for_whom(
    tracker: AttemptTracker, paths: RunPaths
) -> None:
    line = json.dumps({"metrics": {}}).encode()
    for rank in (0, 1):
        tracker.feed(Frame({"op": "report", "rank": rank, "part_follows": True}, line, b""))
    staged = StagedPart(files=()).to_bytes()
    tracker.feed(Frame({"op": "part", "rank": 0, "report": 1}, staged, b""))
    # It has no other reason to wait for them.
    fail(tracker, 1, "the disk is full", type="CheckpointError")
    assert "report 1:" not in str(explain(tracker, paths))
    tracker.failures.clear()
    fail(tracker, 0, "waited 1800 s in report 1", type="CheckpointError")
    lines = str(explain(tracker, paths)).splitlines()
    assert "  Ranks that have not made report 1: 2-3" in lines
    assert "  Ranks that still write their parts of report 1: 1" in lines


def test_a_rank_that_says_why_it_failed_is_to_blame(tracker: AttemptTracker):
    lose(tracker, 0)
    fail(tracker, 3, "CUDA out of memory")
    rank, failure = first_failure(tracker)
    assert rank == 3
    assert failure is not None


def test_of_several_that_say_why_the_first_is_to_blame(tracker: AttemptTracker):
    fail(tracker, 2, "bad batch")
    fail(tracker, 1, "bad batch")
    assert first_failure(tracker)[0] == 2


@pytest.mark.parametrize(
    "message",
    [
        "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5432",
        "Connection reset by peer",
        "NCCL error: remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error: socketProgress: socket "
        "connection was closed",
        "[Errno 32] Broken pipe",
        "gloo: connect timed out",
    ],
)
def test_a_silent_death_comes_before_the_complaints_of_peers(tracker: AttemptTracker, message: str):
    fail(tracker, 0, message)
    lose(tracker, 2)
    fail(tracker, 3, message)
    assert first_failure(tracker) == (2, None)


def test_a_cause_is_found_behind_the_complaint_that_was_heard_first(tracker: AttemptTracker):
    fail(tracker, 0, "Connection closed by peer")
    fail(tracker, 1, "division by zero")
    assert first_failure(tracker)[0] == 1


def test_if_all_only_complain_the_first_is_named(tracker: AttemptTracker):
    fail(tracker, 3, "Connection closed by peer")
    fail(tracker, 1, "Connection closed by peer")
    assert first_failure(tracker)[0] == 3


def test_the_error_names_rank_node_report_log_checkpoint_and_the_users_traceback(
    tracker: AttemptTracker, paths: RunPaths
):
    log = paths.rank_log(1, 3)
    log.parent.mkdir(parents=True)
    log.write_text("")
    fail(tracker, 3, "CUDA out of memory")
    error = explain(tracker, paths, checkpoint=Path("/run/checkpoints/000013"))
    assert str(error).splitlines() == [
        "rank 3 of 4 on n1 failed after report 14: RuntimeError: CUDA out of memory",
        f"  Log: {log}   Last complete checkpoint: /run/checkpoints/000013",
        "",
        '  File "train.py", line 3',
        "RuntimeError: CUDA out of memory",
    ]
    assert (error.rank, error.hostname) == (3, "n1")
    assert isinstance(error.worker_failures[3], RuntimeError)


def test_a_rank_that_failed_before_it_had_a_number_is_told_with_the_launchers_log(
    tracker: AttemptTracker, paths: RunPaths
):
    fail(tracker, -1, "no MPI library", report=0, phase="mpi", type="", traceback="")
    first, second = str(explain(tracker, paths)).splitlines()
    assert first == "rank -1 of 4 on n9 failed in phase mpi: no MPI library"
    assert second == f"  Log: {paths.launcher_log(1)}   Last complete checkpoint: none"


@pytest.mark.parametrize(
    ("rank", "output", "reason"),
    [
        (1, HYDRA_KILLED, "killed by SIGKILL: as a rule the kernel, out of memory"),
        (1, HYDRA_EXITED, "exited with status 9"),
        (0, HYDRA_KILLED, "its process ended (os._exit, a crash, or out of memory)"),
        (1, SRUN_EXITED, "exited with status 7"),
        (1, SRUN_KILLED, "killed by SIGKILL: as a rule the kernel, out of memory"),
        (2, SRUN_KILLED, "killed by SIGKILL: as a rule the kernel, out of memory"),
        (3, SRUN_KILLED, "its process ended (os._exit, a crash, or out of memory)"),
        (1, SRUN_CRASHED, "killed by SIGSEGV: a crash in compiled code"),
        (1, SRUN_OOM, "killed by the kernel, out of memory"),
        (1, OPENMPI_KILLED, "killed by SIGKILL: as a rule the kernel, out of memory"),
        (1, OPENMPI_EXITED, "exited with status 7"),
        (2, OPENMPI_EXITED, "its process ended (os._exit, a crash, or out of memory)"),
        (1, PRTERUN_KILLED, "killed by SIGKILL: as a rule the kernel, out of memory"),
        (1, PRTERUN_EXITED, "exited with status 7"),
        (2, PRTERUN_EXITED, "its process ended (os._exit, a crash, or out of memory)"),
        (1, "", "its process ended (os._exit, a crash, or out of memory)"),
    ],
)
def test_how_a_silent_rank_died_is_read_from_what_its_launcher_printed(
    tracker: AttemptTracker, paths: RunPaths, rank: int, output: str, reason: str
):
    lose(tracker, rank)
    line = str(explain(tracker, paths, output)).splitlines()[0]
    assert line.startswith(
        f"rank {rank} of 4 on n{rank // 2} failed without an exception: {reason}"
    )


def test_of_several_silent_ranks_the_one_that_srun_did_not_end_itself_is_to_blame(
    tracker: AttemptTracker,
):
    lose(tracker, 0, 1, 2, 3)
    assert first_failure(tracker, SRUN_EXITED) == (1, None)
    assert first_failure(tracker, "") == (0, None)


def test_a_crash_is_explained_by_the_stack_in_the_log_of_the_rank(
    tracker: AttemptTracker, paths: RunPaths
):
    log = paths.rank_log(1, 2)
    log.parent.mkdir(parents=True)
    log.write_text("epoch 1\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n")
    lose(tracker, 2)
    assert "without an exception: Segmentation fault, a crash in compiled code" in str(
        explain(tracker, paths, HYDRA_KILLED)
    )


def test_a_crash_in_a_thread_of_c_is_explained_by_its_exception_and_the_main_thread(
    tracker: AttemptTracker, paths: RunPaths
):
    log = paths.rank_log(1, 2)
    log.parent.mkdir(parents=True)
    # As Gloo ends a rank whose tensor has another shape than that of the others.
    log.write_text(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  Received data size doesn't match expected size.\n"
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "/x/link.py", line 1 in _serve\n\n'
        'Thread 0x2 (most recent call first):\n  File "/x/train.py", line 88 in step\n\n'
        "Extension modules: torch._C (total: 1)\n"
    )
    lose(tracker, 2)
    message = str(explain(tracker, paths, HYDRA_KILLED))
    assert "Aborted (Received data size doesn't match expected size.), a crash in" in message
    assert message.endswith('File "/x/train.py", line 88 in step')


def test_a_node_that_is_gone_with_its_agent_is_told_as_such(
    tracker: AttemptTracker, paths: RunPaths
):
    lose(tracker, 2, agent=True)
    line = str(explain(tracker, paths)).splitlines()[0]
    assert line.endswith("the agent of its node is gone too: the node, or its network, is down")


@pytest.mark.parametrize(
    ("cut_off", "named"),
    [((3,), "Rank 3 of this node is"), ((3, 1), "Ranks 1, 3 of this node are")],
)
def test_ranks_that_were_connected_through_the_dead_one_are_named_and_not_blamed(
    tracker: AttemptTracker, paths: RunPaths, cut_off: tuple[int, ...], named: str
):
    for rank in cut_off:
        tracker.feed(Frame({"op": "cut-off", "rank": rank, "relay": 2}, b"", b""))
    lose(tracker, 2)
    error = explain(tracker, paths)
    assert error.rank == 2
    assert f"{named} connected through it, and not known to have failed" in str(error)
    assert "the agent of its node" not in str(error)


def test_what_the_kernel_killed_for_want_of_memory_comes_before_every_other_cause(
    tracker: AttemptTracker, paths: RunPaths
):
    fail(tracker, 0, "the barrier timed out")
    lose(tracker, 3)
    lose(tracker, 2, memory=KILLED)
    first, _, advice = str(explain(tracker, paths)).splitlines()
    assert first == (
        "rank 2 of 4 on n1 failed without an exception: killed by the kernel, out of memory: the "
        "2 ranks of its node share a limit of 300 MiB, of which 300 MiB were used; the rank itself "
        "held 250 MiB when last seen, 0.3 s before"
    )
    assert advice.startswith("  Ask Slurm for more memory, with resources_per_worker={'memory'")


@pytest.mark.parametrize(
    ("memory", "output", "reason"),
    [
        ({"kills": 1}, "", "killed by the kernel, out of memory: the whole node had none left"),
        ({**KILLED, "sharing": 1, "peak": None}, "", "out of memory: its limit is 300 MiB; the"),
        # Of another rank; the kernel's own count is the better witness.
        (
            {"kills": 0},
            SRUN_OOM.replace("task 1", "task 3"),
            "its process ended (os._exit, a crash",
        ),
        ({"kills": 0}, SRUN_OOM, "killed by the kernel, out of memory"),
        ({"kills": 0}, SRUN_KILLED, "killed by SIGKILL, and not for want of memory"),
        # A child of the rank, long before, perhaps.
        (KILLED, SRUN_EXITED, "exited with status 7"),
    ],
)
def test_the_kernels_count_and_the_launchers_word_are_weighed(
    tracker: AttemptTracker, paths: RunPaths, memory: Any, output: str, reason: str
):
    lose(tracker, 1, memory=memory)
    line = str(explain(tracker, paths, output)).splitlines()[0]
    assert reason in line


@pytest.mark.parametrize(
    ("output", "memory", "brief"),
    [
        (HYDRA_KILLED, None, "was killed (SIGKILL)"),
        ("EXIT STRING: Terminated (signal 15)", None, "was killed (SIGTERM)"),
        # The sum of several ends names none of them.
        (HYDRA_KILLED.replace("PID 101", "PID 102"), None, "ended without an error"),
        (SRUN_CRASHED, None, "crashed (SIGSEGV)"),
        (SRUN_EXITED, None, "exited with status 7"),
        (SRUN_OOM, None, "was killed (out of memory)"),
        (SRUN_KILLED, KILLED, "was killed (out of memory)"),
        ("", None, "ended without an error"),
    ],
)
def test_a_silent_end_is_named_in_one_line(
    tracker: AttemptTracker, paths: RunPaths, output: str, memory: Any, brief: str
) -> None:
    lose(tracker, 1, memory=memory)
    error = explain(tracker, paths, output)
    assert error.brief == f"rank 1 on n0 {brief}"


def test_an_exception_and_a_lost_node_are_named_in_one_line(
    tracker: AttemptTracker, paths: RunPaths
) -> None:
    fail(tracker, 2, "the loss is gone\nand more")
    assert explain(tracker, paths, "").brief == "rank 2 on n1 raised RuntimeError: the loss is gone"
    other = AttemptTracker(world_size=4, first_report=0)
    lose(other, 3, agent=True)
    assert explain(other, paths, "").brief == "node n1 is lost, with rank 3"


@pytest.mark.parametrize(
    ("wait_status", "reason", "brief"),
    [
        (9, "killed by SIGKILL", "was killed (SIGKILL)"),
        # With a core dump.
        (11 | 0x80, "killed by SIGSEGV: a crash in compiled code", "crashed (SIGSEGV)"),
        (34, "killed by signal 34", "was killed (signal 34)"),
        (7 << 8, "exited with status 7", "exited with status 7"),
        (0, "exited with status 0", "exited with status 0"),
    ],
)
def test_a_wait_status_says_how_a_rank_ended_whatever_the_launcher_prints(
    tracker: AttemptTracker, paths: RunPaths, wait_status: int, reason: str, brief: str
):
    lose(tracker, 0, 2)
    error = explain(tracker, paths, SRUN_EXITED, death=(2, wait_status))
    assert error.rank == 2
    assert f"failed without an exception: {reason}" in str(error)
    assert error.brief == f"rank 2 on n1 {brief}"


def test_a_rank_that_the_kernel_killed_for_memory_is_so_by_its_wait_status_too(
    tracker: AttemptTracker, paths: RunPaths
):
    lose(tracker, 1, memory=KILLED)
    assert "killed by the kernel, out of memory" in str(explain(tracker, paths, death=(1, 9)))


@pytest.mark.parametrize("away", [False, True])
def test_where_the_storage_is_away_a_failure_is_explained_and_does_not_last(
    tracker: AttemptTracker, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, away: bool
):
    advice = "Install it on all nodes: pip install timm"
    fail(tracker, 1, "No module named 'timm'", advice=advice, missing_module="timm")
    spec = RunSpec(
        trainer="T",
        backend="B",
        fingerprint="f",
        digests={},
        settings=SETTINGS,
        worker=b"",
        executor=b"",
    )
    paths.spec.write_bytes(spec.to_bytes())
    paths.spec.chmod(0o600)
    stat, opened = os.stat, os.open

    def refuse(path: Any, *args: Any, real: Callable[..., Any], **how: Any) -> Any:
        if away and str(path).startswith(str(paths.root)):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, *args, **how)

    monkeypatch.setattr(os, "stat", partial(refuse, real=stat))
    monkeypatch.setattr(os, "open", partial(refuse, real=opened))
    error = explain(tracker, paths)
    assert advice in str(error)
    assert error.lasting is not away
