"""How ranks agree who writes what: rank 0 plans for all, and all of them fail together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from hpctrain.errors import CheckpointError
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.torch.state.layout import save_plan
from hpctrain.torch.state.layout.save_plan import plan_save
from hpctrain.torch.state.ranks import ask_rank_0, exchange, failing_together
from hpctrain.torch.state.state_dict.flatten import flatten_state
from tests.counting_comm import Counting


def _planned(states: Callable[[int], Iterable[dict[str, torch.Tensor]]]) -> list[Any]:
    """Plan states on two ranks; return what each was told of, and the shapes of each plan."""

    def plan(comm: ThreadComm) -> Any:
        counting: Any = Counting(comm)
        shapes = []
        for tensors in states(comm.rank):
            state = flatten_state(others={"x": tensors})
            index = plan_save(state, communicator=counting).index
            shapes.append(None if index is None else dict(index.shapes))
        return counting.stages, shapes

    return run_on_threads(2, plan)


def test_a_plan_is_shared_out_once() -> None:
    def states(rank: int) -> Iterable[dict[str, torch.Tensor]]:
        for width in (11, 11, 12, 11):
            yield {"w": torch.zeros(3, width), f"of {rank}": torch.zeros(2)}

    once, again = ["save_state()", "sharing out"], ["save_state()"]
    assert [stages for stages, _ in _planned(states)] == [once + again + once + again] * 2


def test_a_state_may_change_on_one_rank_alone() -> None:
    def states(rank: int) -> Iterable[dict[str, torch.Tensor]]:
        for size in (7, 8, 7):
            yield {f"of {rank}": torch.zeros(size if rank == 1 else 5)}

    (_, shapes), _ = _planned(states)
    assert shapes == [{"x.of 0": (5,), "x.of 1": (size,)} for size in (7, 8, 7)]


def _own(rank: int, *, tensors: int) -> Any:
    """Return a state that no other rank has."""
    return flatten_state(
        others={"x": {f"of {rank:02d}": {str(i): torch.zeros(5) for i in range(tensors)}}}
    )


def test_what_a_rank_receives_does_not_grow_with_the_number_of_ranks() -> None:
    def plan(comm: ThreadComm) -> tuple[int, int]:
        counting: Any = Counting(comm)
        plan_save(_own(comm.rank, tensors=40), communicator=counting)
        return counting.received, max(counting.agreed)

    received = defaultdict[str, set[int]](set)
    for size in (2, 4, 8):
        (first, _), *others = run_on_threads(size, plan)
        received["rank 0"].add(first)
        for alone, agreed in others:
            received["others"].add(alone)
            # A stage, and a digest or a length.
            assert agreed < 64
    assert len(received["others"]) == 1
    assert len(received["rank 0"]) == 3


def test_of_ranks_that_hold_the_same_one_sends_it() -> None:
    def plan(comm: ThreadComm) -> int:
        counting: Any = Counting(comm)
        # As with HSDP: rank 0 and 2, and rank 1 and 3.
        plan_save(_own(comm.rank % 2, tensors=200), communicator=counting)
        return counting.received

    def plan_two(comm: ThreadComm) -> int:
        counting: Any = Counting(comm)
        plan_save(_own(comm.rank, tensors=200), communicator=counting)
        return counting.received

    assert run_on_threads(4, plan)[0] - run_on_threads(2, plan_two)[0] < 1000


def _errors(call: Callable[[ThreadComm], Any], *, ranks: int = 3) -> list[str]:
    def play(comm: ThreadComm) -> str:
        with pytest.raises(CheckpointError) as raised:
            call(comm)
        # All of them are at the same place: the next collective works.
        assert comm.allgather(comm.rank) == list(range(comm.size))
        return str(raised.value)

    return run_on_threads(ranks, play)


def test_what_rank_0_refuses_is_the_same_error_on_all_ranks() -> None:
    def plan(comm: ThreadComm) -> None:
        state = flatten_state(others={"x": {"w": torch.zeros(3 + comm.rank % 2)}})
        plan_save(state, communicator=comm)

    (error,) = set(_errors(plan))
    assert error.startswith("x.w is float32[3] on one rank and float32[4] on another.")


def test_an_answer_that_rank_0_cannot_make_is_an_error_on_all_ranks() -> None:
    def refuse(contents: Sequence[bytes]) -> list[bytes]:
        assert contents == [b"of 0", b"of 1", b"of 2"]
        raise MemoryError

    (error,) = set(_errors(lambda comm: ask_rank_0(comm, "here", b"of %d" % comm.rank, refuse)))
    assert error == "rank 0 of 3 failed: MemoryError"


def test_a_rank_that_fails_before_it_sends_is_an_error_on_all_ranks() -> None:
    def ask(comm: ThreadComm) -> None:
        with failing_together(comm, "here"):
            if comm.rank == 1:
                raise CheckpointError("no room")
        ask_rank_0(comm, "here", b"", lambda contents: contents)

    assert _errors(ask) == ["rank 1 of 3 failed: no room", "no room", "rank 1 of 3 failed: no room"]


def test_a_rank_that_calls_another_function_is_noticed() -> None:
    def call(comm: ThreadComm) -> None:
        if comm.rank == 1:
            exchange(comm, "there", None)
        ask_rank_0(comm, "here", b"", lambda contents: contents)

    first, second, third = _errors(call)
    assert first.startswith("rank 0 is in here, and others are not: rank 1 in there.")
    assert second.startswith("rank 1 is in there, and others are not: rank 0 in here, rank 2 in")
    assert third.startswith("rank 2 is in here, and others are not: rank 1 in there.")


def test_a_rank_that_has_forgotten_a_plan_is_noticed() -> None:
    def call(comm: ThreadComm) -> None:
        states = [_own(comm.rank, tensors=3 + more) for more in range(2)]
        for state in states:
            plan_save(state, communicator=comm)
        comm.barrier()
        if comm.rank == 1:
            for key in [key for key in save_plan._assignments if key[1:] == (1, comm.size)]:
                del save_plan._assignments[key]
        comm.barrier()
        plan_save(states[0], communicator=comm)
        exchange(comm, "saving", None)

    first, second, _ = _errors(call)
    assert first.startswith("rank 0 is in saving, and others are not: rank 1 in sharing out.")
    assert second.startswith("rank 1 is in sharing out, and others are not: rank 0 in saving, ")
