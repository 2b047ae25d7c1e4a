from __future__ import annotations

import threading
from typing import Any

import pytest

from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.world import Communicator, SerialComm


def say(comm: Communicator) -> dict[str, Any]:
    """Return what each collective gives this rank."""
    mine = f"<{comm.rank}>"
    comm.barrier()
    return {
        "bcast": comm.bcast(mine, root=comm.size - 1),
        "allgather": comm.allgather(mine),
        "gather": comm.gather(mine),
        "scatter": comm.scatter([f"to {i}" for i in range(comm.size)] if comm.rank == 0 else None),
        "allreduce": comm.allreduce(mine, op=lambda a, b: a + b),
    }


def test_collectives_join_what_threads_say_in_their_order():
    first, second, third = run_on_threads(3, say)
    every = ["<0>", "<1>", "<2>"]
    everyone = {"bcast": "<2>", "allgather": every, "allreduce": "<0><1><2>"}
    assert first == {**everyone, "gather": every, "scatter": "to 0"}
    assert second == {**everyone, "gather": None, "scatter": "to 1"}
    assert third == {**second, "scatter": "to 2"}


def test_one_rank_says_what_one_thread_says():
    assert [say(SerialComm())] == run_on_threads(1, say)


def test_objects_do_not_travel_as_themselves():
    given: list[int] = []
    gathered = run_on_threads(2, lambda comm: comm.bcast(given if comm.rank == 0 else None))
    assert gathered == [[], []]
    assert gathered[1] is not given


def test_a_rank_that_fails_does_not_let_the_others_wait():
    def fail(comm: ThreadComm) -> None:
        if comm.rank == 1:
            raise RuntimeError("rank 1 fails")
        comm.barrier()

    with pytest.raises(RuntimeError, match="rank 1 fails"):
        run_on_threads(3, fail)


def test_the_error_of_the_lowest_rank_is_raised_though_another_came_first():
    def fail(comm: ThreadComm) -> None:
        if comm.rank == 0:
            with pytest.raises(threading.BrokenBarrierError):
                comm.barrier()
        raise RuntimeError(f"rank {comm.rank} fails")

    with pytest.raises(RuntimeError, match="rank 0 fails"):
        run_on_threads(2, fail)


@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("failed")])
def test_what_is_no_exception_is_raised_too(error: BaseException):
    def fail(comm: ThreadComm) -> None:
        if comm.rank == 1:
            raise error
        comm.barrier()

    with pytest.raises(type(error)):
        run_on_threads(2, fail)


def test_a_rank_that_does_not_come_is_not_waited_for_forever():
    def leave(comm: ThreadComm) -> None:
        if comm.rank == 0:
            comm.barrier()

    with pytest.raises(threading.BrokenBarrierError):
        run_on_threads(2, leave, timeout_s=0.1)
