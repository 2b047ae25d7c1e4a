"""A collective that does not end is explained by what torch has recorded on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig, WorkerError
from hpctrain.errors import WorkerHangError
from hpctrain.torch import TorchConfig, TorchTrainer
from hpctrain.torch.flight_recorder import summarize
from hpctrain.worker.group_record import Call
from tests import runs


def entry(number: int, **changes: Any) -> dict[str, Any]:
    """Return a call of Gloo as torch 2.13 records it."""
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "input_dtypes": ["Float"],
        "input_sizes": [[4]],
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "retired": True,
        "state": "scheduled",
        "time_created_ns": number,
        **changes,
    }


def test_the_oldest_call_that_has_not_ended_is_pending_and_the_newest_is_counted() -> None:
    entries = [
        entry(1),
        entry(2, state="completed", retired=False),
        entry(3, retired=False, state="started", profiling_name="nccl:all_gather"),
        entry(4, retired=False),
        entry(1, process_group=["1", "undefined"], retired=False, input_sizes=[], input_dtypes=[]),
    ]
    first, second = summarize(entries, {"0": (0, 1), "1": (1,)})
    assert (first.name, first.description, first.ranks, first.calls) == (
        "0",
        "default_pg",
        (0, 1),
        4,
    )
    assert first.pending == Call(op="all_gather", number=3, shapes=((4,),), dtypes=("float",))
    assert (second.name, second.description, second.calls) == ("1", "", 1)
    assert second.pending == Call(op="all_reduce", number=1)


def test_receives_have_numbers_of_their_own_and_come_after_collectives() -> None:
    receive = entry(9, is_p2p=True, p2p_seq_id=2, retired=False, profiling_name="nccl:recv 0<-1")
    (group,) = summarize([entry(3), receive], {})
    assert (group.calls, group.ranks) == (3, ())
    assert group.pending is not None
    assert (group.pending.op, group.pending.number) == ("recv 0<-1", 2)
    (group,) = summarize([receive, entry(4, retired=False)], {})
    assert group.pending is not None
    assert not group.pending.is_p2p


def _train(config: dict[str, Any]) -> None:
    import time

    import torch
    from torch import distributed

    import hpctrain

    rank = hpctrain.get_context().get_world_rank()
    data = distributed.new_group([0, 1, 2], group_desc="dp")
    tensors = distributed.new_group([0, 1, 2], group_desc="tp")
    for _ in range(3):
        distributed.all_reduce(torch.ones(4), group=data)

    def load_slowly() -> None:
        time.sleep(120)

    kind = config["kind"]
    if kind in ("late", "timeout") and rank == 1:
        load_slowly()
    if kind == "mpi":
        from mpi4py import MPI

        if rank == 1:
            load_slowly()
        MPI.COMM_WORLD.Barrier()
    if kind == "returned" and rank == 2:
        return
    # A group made by new_group() has torch's own timeout.
    groups = [None] if kind == "timeout" else [data, tensors]
    if kind == "order" and rank == 0:
        groups.reverse()
    for group in groups:
        distributed.all_reduce(torch.ones(2, 3), group=group)


def fit(tmp_path: Path, kind: str, *, timeout_s: float = 60, hang_timeout_s: float | None = 2):
    return runs.fit(
        _train,
        tmp_path,
        num_workers=3,
        trainer=TorchTrainer,
        train_loop_config={"kind": kind},
        torch_config=TorchConfig(timeout_s=timeout_s),
        failure_config=FailureConfig(hang_timeout_s=hang_timeout_s),
    )


@pytest.mark.mpi
def test_the_rank_that_never_called_is_named_with_the_line_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(tmp_path, "late")
    assert caught.value.rank == 1
    first, second, *_ = str(caught.value).splitlines()
    assert first.startswith("rank 1 of 3 ")
    assert second.startswith(
        "  Ranks 0,2 wait in all_reduce #4 (float [2, 3], process group dp); rank 1 never called "
        "it: test_flight_recorder.py:"
    )
    assert second.endswith(", in load_slowly")


@pytest.mark.mpi
def test_ranks_that_call_in_another_order_wait_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(tmp_path, "order")
    message = str(caught.value)
    assert message.startswith("all 3 ranks hang ")
    assert (
        "  Ranks 1-2 wait in all_reduce #4 (float [2, 3], process group dp); rank 0 waits in "
        "all_reduce #1 (float [2, 3], process group tp) instead: test_flight_recorder.py:"
    ) in message
    assert "  They wait for each other: every rank must call" in message


@pytest.mark.mpi
def test_a_rank_that_has_returned_never_called_it(tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(tmp_path, "returned")
    message = str(caught.value)
    assert message.startswith("ranks 0 ")
    assert "; rank 2 never called it: returned after report 0\n" in message


@pytest.mark.mpi
def test_a_collective_that_runs_out_of_time_names_the_rank_that_did_not_come(
    tmp_path: Path,
) -> None:
    with pytest.raises(WorkerError) as caught:
        fit(tmp_path, "timeout", timeout_s=3, hang_timeout_s=None)
    assert not isinstance(caught.value, WorkerHangError)
    message = str(caught.value)
    assert "Timed out waiting" in message.splitlines()[0]
    assert "wait in all_reduce #1 (float [2, 3], process group default_pg); rank 1 nev" in message
    assert "test_flight_recorder.py:" in message
    assert (tmp_path / "run/stacks/1/rank-00001.txt").read_text().count("load_slowly") == 1


@pytest.mark.mpi
def test_without_a_record_the_stacks_tell_who_waits(tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(tmp_path, "mpi")
    assert caught.value.rank == 1
    message = str(caught.value)
    assert "\n  Rank 1 does not wait for others: test_flight_recorder.py:" in message
    assert "wait for other ranks: test_flight_recorder.py:" in message


@pytest.mark.mpi
def test_the_users_own_size_of_the_record_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> str:
        import os

        return os.environ["TORCH_FR_BUFFER_SIZE"]

    def sizes() -> str:
        trained = runs.fit(train, tmp_path, num_workers=1, name=None, trainer=TorchTrainer)
        return trained.return_value

    assert sizes() == "500"
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert sizes() == "0"
